"""Programs to learn from and to copy: a harness loop, an agent on Anthropic's API, and a demonstration."""
