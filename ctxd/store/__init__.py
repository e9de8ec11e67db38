"""The version store: the only interface for writes and reads of versions.

A write updates the tables in the transaction of its journal row; the projection to an XTDB node follows, in order.
Owns the journal, its hash chain, group commit, idempotency and the valid-time clock. Every read sees every accepted
write.
"""
