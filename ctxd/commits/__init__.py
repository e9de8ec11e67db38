"""Context commits: chains of what agents have learned, see ``ctxd.commits.commit_operations``."""
