"""Programs to learn from and to copy: a harness loop, and the demonstration built on it."""
