"""The indexing protocol: which version a source's state makes, and which files a command's output speaks of."""
