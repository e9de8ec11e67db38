"""Measures the daemon side by side with what bounds it: ``python -m bench``."""
