"""What this package registers with coatcheck: hook implementations only, no store code."""

coatcheck_api = 1
