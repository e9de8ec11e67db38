"""The edge: bytes on a socket to calls on services. The only package that knows asyncio."""
