"""Readers of the transcripts of coding harnesses: from files to typed events. They never write to a source."""
