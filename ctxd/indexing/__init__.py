"""The indexing protocol: versions to write for the states of sources, and file names in commands and their output."""
