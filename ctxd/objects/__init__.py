"""What an object is: its kinds, its identity, its hashes and its next version. Pure: no I/O, no clock."""
