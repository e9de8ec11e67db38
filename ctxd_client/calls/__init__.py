"""Every call there is, by family, as a function from arguments to a ``Call``; both clients make theirs from these."""
