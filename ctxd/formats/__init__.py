"""Delta formats of context commits: reading, writing, counting and translating conversations."""
