"""Sessions: their sets, their chat, and the registry of those in memory."""
