"""Readers of the transcripts that coding harnesses write: from files to typed events. They never write to a source."""
