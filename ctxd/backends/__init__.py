"""Where versions are kept: one port, and an implementation a module."""
