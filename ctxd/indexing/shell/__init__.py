"""Shell commands and their output to the file paths they speak of. Pure."""
