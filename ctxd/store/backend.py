"""Which backend keeps the versions of a state directory: chosen here, and known by its port everywhere else."""

from ctxd import dbfile
from ctxd.backends.port import EmbeddedBackend
from ctxd.backends.sqlite.backend import SqliteBackend


def backend_of(connection: dbfile.Connection) -> EmbeddedBackend:
    """The versions in the database behind ``connection``, read and written in whatever transaction that is in."""
    return SqliteBackend(connection)
