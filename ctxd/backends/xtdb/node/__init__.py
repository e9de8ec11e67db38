"""The XTDB node as a program: installing, starting and checking it. ``program/`` is the code that the JVM runs."""
