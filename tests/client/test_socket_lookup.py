"""Lookup of the socket: its order, and the remedy when no daemon answers."""

import os

import pytest

from ctxd_client import socket_lookup
from ctxd_client.socket_lookup import SocketPlace, find_socket, remedy


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An environment whose three usual places are below ``tmp_path``; nothing exists yet."""
    monkeypatch.setattr(socket_lookup, "SYSTEM_SOCKET", str(tmp_path / "system.sock"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": "/nowhere"}


def make(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_an_argument_wins_over_the_environment_and_both_need_not_exist(places):
    places["CTXD_SOCKET"] = "/named.sock"
    assert find_socket("/arg.sock", places) == ("/arg.sock", "argument")
    assert find_socket(None, places) == ("/named.sock", "CTXD_SOCKET")


def test_the_first_existing_default_socket_is_used(places, tmp_path):
    make(tmp_path / "state/ctxd/ctxd.sock")
    assert find_socket(None, places).origin == "state"
    make(tmp_path / "run/ctxd/ctxd.sock")
    assert find_socket(None, places).origin == "runtime"
    make(tmp_path / "system.sock")
    assert find_socket(None, places).origin == "system"


def test_another_users_socket_does_not_hide_this_users_own(places, tmp_path, monkeypatch):
    make(tmp_path / "system.sock")
    monkeypatch.setattr(os, "access", lambda path, *_, **__: not path.endswith("system.sock"))
    assert find_socket(None, places).origin == "system", "there is no other, and its error says why"
    make(tmp_path / "run/ctxd/ctxd.sock")
    assert find_socket(None, places).origin == "runtime"


def test_without_a_socket_the_error_names_this_users_default_path(places, tmp_path, monkeypatch):
    assert find_socket(None, places).path == str(tmp_path / "run/ctxd/ctxd.sock")
    del places["XDG_RUNTIME_DIR"]
    assert find_socket(None, places).path == str(tmp_path / "state/ctxd/ctxd.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_socket(None, places).path == str(tmp_path / "system.sock")


def test_an_empty_variable_is_ignored(places, tmp_path):
    places["CTXD_SOCKET"] = places["XDG_RUNTIME_DIR"] = ""
    assert find_socket(None, places).path == str(tmp_path / "state/ctxd/ctxd.sock")


@pytest.mark.parametrize(
    ("place", "reason", "words"),
    [
        (SocketPlace("/a.sock", "argument"), FileNotFoundError(), "ctxd run --state-dir DIR --socket /a.sock"),
        (SocketPlace("/run/ctxd/ctxd.sock", "system"), FileNotFoundError(), "start a daemon: ctxd run"),
        (SocketPlace("/a.sock", "system"), PermissionError(), "another user or group"),
        (SocketPlace("/" + "a" * 120, "argument"), OSError(), "at most 107 bytes"),
    ],
)
def test_the_remedy_fits_the_cause(place, reason, words):
    assert words in remedy(place, reason)
