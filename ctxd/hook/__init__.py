"""``ctx-hook``, the program that harnesses run at each event, and the files that connect pi and opencode to it."""
