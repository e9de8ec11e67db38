"""The XTDB node as a program: installing, starting and checking it. ``program/`` is what the JVM runs."""
