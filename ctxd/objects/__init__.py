"""Objects: kinds, identity, hashes and next versions. Pure: no I/O, no clock."""
