"""Import of transcripts: plans the commits of a source, and makes them as a client of the daemon.

The plans are pure: ``TranscriptPlan`` and the modules it uses read no file and no clock.
"""
