"""The RPC edge: turns bytes on a socket into calls of services, and results into bytes, with asyncio's transports."""
