"""The synchronous twin of the client, generated from the asynchronous one."""
