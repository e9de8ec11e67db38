"""Several hosts on one XTDB log: who may write a session, who is alive, and what became of writes that lost."""
