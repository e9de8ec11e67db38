"""What the daemon and the program that runs it as a service say to each other."""
