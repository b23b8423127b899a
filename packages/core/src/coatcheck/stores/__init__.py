"""Stores that come with the core; they are registered through the same door as those of plugins."""
