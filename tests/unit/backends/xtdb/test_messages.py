"""Answers of nodes, as our program spells them and as the official server does."""

import pytest

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.messages import (
    TYPE,
    Behind,
    NodeStatus,
    Refused,
    Unknown,
    Unreachable,
    XtdbFailure,
    failure,
    number,
    to_committed,
    to_status,
)
from ctxd.backends.xtdb.transit import Keyword

OURS = {
    Keyword("xtdb.version/version"): "1.24.5",
    Keyword("xtdb.version/revision"): "abc",
    Keyword("xtdb.index-version/index-version"): 22,
    Keyword("xtdb.kv/kv-store"): "xtdb.rocksdb.RocksKv",
    Keyword("xtdb.kv/estimate-num-keys"): 7,
    Keyword("xtdb.kv/size"): 8,
    Keyword("ingester-failed?"): False,
}
OFFICIAL = {
    "version": "1.24.5",
    "revision": "abc",
    "indexVersion": 22,
    "kvStore": "xtdb.rocksdb.RocksKv",
    "estimateNumKeys": 7,
    "size": 8,
    "ingesterFailed?": False,
}


@pytest.mark.parametrize("read", [OURS, OFFICIAL], ids=["ours", "official"])
def test_a_status_is_read_in_both_spellings(read: dict[str, object]) -> None:
    assert to_status(read) == NodeStatus(
        version="1.24.5",
        revision="abc",
        index_version=22,
        kv_store="xtdb.rocksdb.RocksKv",
        keys=7,
        bytes=8,
        ingester_failed=False,
    )
    failed = {name: True if value is False else value for name, value in read.items()}
    assert to_status(failed).ingester_failed


def test_only_the_ingester_state_is_required_in_a_status() -> None:
    found = to_status({"ingesterFailed?": True, "size": None, "version": 7})
    assert (found.version, found.keys, found.bytes, found.ingester_failed) == (None, None, None, True)
    for read in ({}, {"ingesterFailed?": "no"}, []):
        with pytest.raises(ValueError):
            to_status(read)


def test_an_outcome_in_either_spelling_and_a_number_are_read_or_refused() -> None:
    assert to_committed({Keyword("tx-committed?"): True}) and not to_committed({"txCommitted?": False})
    assert number({"tx-id": 3}, "tx-id") == number({Keyword("xtdb.api/tx-id"): 3}, "tx-id") == 3
    with pytest.raises(ValueError, match="no number tx-id"):
        number({"tx-id": True}, "tx-id")
    with pytest.raises(ValueError):
        to_committed({})


@pytest.mark.parametrize("kind", ["illegal-argument", "java.lang.IllegalArgumentException"])
@pytest.mark.parametrize(
    ("status", "expected"), [(399, Unknown), (400, Refused), (422, Refused), (499, Refused), (500, Unknown)]
)
def test_a_request_is_refused_only_if_the_node_blames_it(kind: str, status: int, expected: type[XtdbFailure]) -> None:
    found = failure(status, TYPE, transit.encode({"error-key": kind, "message": "no"}))
    assert (type(found), found.status) == (expected, status)


def test_other_failures_are_classified_by_kind_and_status() -> None:
    def kind_of(status: int, **fields: str) -> type[XtdbFailure]:
        return type(failure(status, TYPE, transit.encode(dict(fields))))

    assert kind_of(400, **{"error-key": "node-out-of-sync"}) is Behind
    assert kind_of(500, **{"error-type": "xtdb.api.NodeOutOfSyncException"}) is Behind
    assert kind_of(400, error='Malformed "transit" request') is Unreachable
    assert kind_of(500, error='Malformed "transit" request') is Unknown
    assert kind_of(400, error="no reason") is Unknown
    assert type(failure(502, "text/html", b"<html>")) is Unknown
