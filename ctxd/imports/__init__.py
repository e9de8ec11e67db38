"""Import of transcripts: plans the commits of a source, and makes them as a client of the daemon.

Plans are pure: ``TranscriptPlan`` and the modules that it uses read no file and no clock. ``ImportedLines``, a plan of
the lines of an earlier import, reads its source.
"""
