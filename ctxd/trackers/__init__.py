"""Trackers: which files are followed for whom, and the watchers of directories that tell of changes."""
