"""The sets a session keeps, its chat, and the sessions that are live."""
