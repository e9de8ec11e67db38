"""The backend in SQLite does what every backend must do, and serves no damaged row."""

from contextlib import contextmanager

import pytest

from ctxd import sqlite_file
from ctxd.backends import sqlite as numbers
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.store import schema
from tests.suites.backend import EmbeddedSuite


@pytest.fixture
def connection(tmp_path):
    connection = sqlite_file.open_writer(tmp_path / "versions.db")
    connection.execute(schema.TABLES).fetchall()
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


def test_a_number_that_was_rolled_back_is_given_again(connection):
    backend = SqliteBackend(connection)
    backend.create()
    connection.execute("BEGIN")
    backend.append([Version("lost", 10, 1, 7, b"x")])
    connection.execute("ROLLBACK")
    backend.rolled_back()
    backend.append([Version("a", 10, 1, 7, b"a"), Version("lost", 10, 1, 7, b"b")])
    assert [version.body for version in backend.history("a") + backend.history("lost")] == [b"a", b"b"]


def test_an_entity_that_gets_no_number_is_an_error_and_no_row_of_another(connection):
    backend = SqliteBackend(connection)
    backend.create()
    connection.execute("CREATE TRIGGER lossy BEFORE INSERT ON entity WHEN new.id='b' BEGIN SELECT raise(IGNORE); END")
    with pytest.raises(sqlite_file.SqlFailed, match="1 entity without a number"):
        backend.append([Version("a", 10, 1, 7, b"x"), Version("b", 10, 1, 7, b"y")])


def test_numbers_beyond_the_cache_limit_are_looked_up(connection, monkeypatch):
    monkeypatch.setattr(numbers, "_KNOWN_MAX", 10)
    backend = SqliteBackend(connection)
    backend.create()
    given = {id: number for n in range(30) for id, number in backend.number([f"a{n}", f"b{n}"]).items()}
    assert len(set(given.values())) == 60
    assert backend.number(given) == given


def test_rows_are_the_same_however_many_go_in_at_once(connection):
    backend = SqliteBackend(connection)
    backend.create()
    for count in (1, 3, 4, 5, 65, 700):
        versions = [Version(f"{count}-{n:04d}", 1, 1, 1, b"x") for n in range(count)]
        backend.append(versions)
        assert backend.scan(f"{count}-") == versions


@pytest.mark.requirement("DUR-10")
def test_an_entity_that_is_known_and_has_no_version_is_damaged(connection):
    backend = SqliteBackend(connection)
    backend.create()
    backend.number(["a"])
    backend.append([Version("b", 1, 1, 0, b"x")])
    backend.require_versions(["unknown", "b"])
    with pytest.raises(DamagedVersion):
        backend.require_versions(["unknown", "a"])
