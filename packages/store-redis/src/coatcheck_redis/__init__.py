"""Redis store for coatcheck."""
