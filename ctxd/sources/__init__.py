"""Sources outside the daemon that objects are bound to, such as the host's files."""
