"""Version backends: one port, and one implementation per module."""
