"""Context commits: chains of deltas of agents' conversations, see ``ctxd.commits.commit_operations``."""
