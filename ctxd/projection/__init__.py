"""The journal, carried over to an XTDB node: in order, each row once, and never in the way of a write."""
