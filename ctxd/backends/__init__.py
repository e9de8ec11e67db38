"""Version backends, one implementation per module."""
