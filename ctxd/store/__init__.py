"""The one door to versions: durable first, projected in the same transaction or soon after, in order.

Owns the journal, its hash chain, group commit, idempotency and the valid-time clock. Every read sees every accepted
write.
"""
