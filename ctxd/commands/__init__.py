"""The commands of ``ctxd``, one module each."""
