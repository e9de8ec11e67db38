"""Capture of a running agent: its output to events, and its events to the deltas of context commits."""
