"""The wire: values and shapes that daemon and clients share.

Owns what travels over the socket: ids, object versions, sessions, contexts, errors, limits and the method table.
Does no I/O, reads no clock and depends on msgspec alone, so that a client in any process can import it.
"""
