"""Sandboxes' sockets: their listeners, their quotas, and the context answer in CBOR."""
