"""Full-text search over sessions and commits: the index, what it holds, and queries."""
