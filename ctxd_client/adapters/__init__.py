"""Adapters that keep what other programs store in the daemon. Each needs its vendor's package; nothing imports them.

``langgraph``: a checkpointer. ``agent_sdk``: a store of the Claude Agent SDK's sessions.
"""
