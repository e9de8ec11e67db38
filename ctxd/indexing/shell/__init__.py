"""File paths in shell commands and their output. Pure."""
