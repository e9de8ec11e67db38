"""Delta formats of context commits: reading, writing, counting and translating the conversations that commits hold."""
