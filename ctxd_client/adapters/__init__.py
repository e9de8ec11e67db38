"""Adapters that make the daemon the store of other programs. Each needs its vendor's package; nothing imports them.

``langgraph``: a checkpointer. ``agent_sdk``: a session store for the Claude Agent SDK.
"""
