"""What this package registers with coatcheck: hook implementations only, no handler code."""

coatcheck_api = 1
