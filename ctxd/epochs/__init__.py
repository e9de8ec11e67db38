"""Context epochs: the system context that a model has received, and each change to it."""
