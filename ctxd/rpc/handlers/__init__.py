"""Handlers by family of methods: decoded parameters in, one call on a service, its result out."""
