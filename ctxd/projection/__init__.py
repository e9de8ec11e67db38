"""Projection of the journal to an XTDB node: in order, each row once, and without delaying writes."""
