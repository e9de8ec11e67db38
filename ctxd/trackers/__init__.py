"""Trackers of files for sessions, and the watchers of directories that report changes."""
