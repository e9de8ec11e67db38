"""The edge: bytes on a socket become calls on services, and their results become bytes. The only place with asyncio."""
