"""What this package registers with coatcheck."""

coatcheck_api = 1
