"""The wire protocol: ids, values, errors, limits, framing and the method table that daemon and clients share.

No I/O, no clock, and no dependency but msgspec, so that a client in any process can import it.
"""
