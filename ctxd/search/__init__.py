"""Full-text search over sessions and commits: the index, its content, and queries."""
