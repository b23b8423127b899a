"""An example plugin for coatcheck."""
