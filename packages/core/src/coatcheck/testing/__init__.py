"""Contract tests, strategies and fakes for authors of plugins; nothing else in coatcheck may import them."""
