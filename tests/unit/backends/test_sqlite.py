"""The backend in SQLite does what every backend must do, and serves no damaged row."""

from contextlib import contextmanager

import pytest

from ctxd import dbfile
from ctxd.backends.port import DamagedVersion, Version
from ctxd.backends.sqlite.backend import SqliteBackend
from tests.suites.backend import EmbeddedSuite


@pytest.fixture
def connection(tmp_path):
    connection = dbfile.open_writer(tmp_path / "versions.db")
    yield connection
    connection.close()


class TestSqliteBackend(EmbeddedSuite):
    @pytest.fixture
    def fresh_embedded(self, connection):
        @contextmanager
        def make():
            connection.execute("BEGIN")
            backend = SqliteBackend(connection)
            backend.create()
            yield backend
            connection.execute("ROLLBACK")

        return make


@pytest.mark.parametrize(
    "damage",
    [
        "vt=vt+1",
        "tx=tx+1",
        "tx_time=0",
        "body=x'00'",
        "body=NULL",
        "body='text'",
        "content=NULL",
        "crc=crc+1",
        "crc='a'",
    ],
)
def test_a_damaged_row_is_an_error_and_never_an_answer(connection, damage):
    backend = SqliteBackend(connection)
    backend.create()
    backend.append([Version("a", 10, 1, 7, b"x", b"c" * 32)])
    connection.execute(f"UPDATE version SET {damage}")
    with pytest.raises(DamagedVersion, match="version of a"):
        backend.history("a")


def test_rows_are_the_same_however_many_go_in_at_once(connection):
    backend = SqliteBackend(connection)
    backend.create()
    for count in (1, 3, 4, 5, 65, 700):
        versions = [Version(f"{count}-{n:04d}", 1, 1, 1, b"x") for n in range(count)]
        backend.append(versions)
        assert backend.scan(f"{count}-") == versions
