"""Video generation handlers for coatcheck."""
