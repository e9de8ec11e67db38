"""The XTDB node as a program: installed, started and looked at. ``program/`` is what the JVM gets."""
