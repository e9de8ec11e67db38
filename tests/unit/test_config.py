"""Settings: which place wins, what is refused, and how a refusal reads."""

import dataclasses
import os
import re

import pytest

from ctxd import config
from ctxd.config import SETTINGS, ConfigError, load
from ctxd.rpc.listener_state import Timing
from ctxd.rpc.socket_server import CONNECTIONS_MAX
from ctxd_client.socket_lookup import find_socket, socket_places
from ctxd_protocol.limits import Limits
from ctxd_protocol.session_types import Collapse


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc.toml")
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_configuration_every_setting_has_its_default(home, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = load({}, home)
    assert found.socket == tmp_path / "run/ctxd/ctxd.sock"
    assert found.state_dir == tmp_path / ".local/state/ctxd"
    assert (found.socket_group, found.log_level) == (None, "info")
    assert set(found.origins.values()) == {"default"}


def test_a_flag_wins_over_the_environment_which_wins_over_the_users_file_which_wins_over_the_systems(home, tmp_path):
    system = write(tmp_path / "etc.toml", "[limits]\ndrain_s = 1\nframe_s = 1\nstall_s = 1\nin_flight = 4\n")
    user = write(tmp_path / ".config/ctxd/ctxd.toml", "[limits]\ndrain_s = 2\nframe_s = 2\nstall_s = 2\n")
    home["CTXD_LIMITS_DRAIN_S"] = "3"
    home["CTXD_LIMITS_FRAME_S"] = "3"
    found = load({"limits.drain_s": 4, "limits.stall_s": None}, home)
    assert (found.drain_s, found.frame_s, found.stall_s, found.in_flight) == (4.0, 3.0, 2.0, 4)
    assert [found.origins[f"limits.{key}"] for key in ("drain_s", "frame_s", "stall_s", "in_flight",
    "connections_max")] == [
        "flag", "env CTXD_LIMITS_FRAME_S", f"file {user}", f"file {system}", "default",
    ]  # fmt: skip


def test_a_named_file_is_read_instead_of_the_usual_ones(home, tmp_path):
    write(tmp_path / ".config/ctxd/ctxd.toml", "[limits]\ndrain_s = 2\n")
    home["CTXD_CONFIG"] = str(write(tmp_path / "mine.toml", 'log.level = "debug"\n'))
    found = load({}, home)
    assert (found.log_level, found.drain_s) == ("debug", 5.0)


@pytest.mark.requirement("PRJ-9")
@pytest.mark.parametrize("text", ['store = "xtdb"\n', '[store]\nbackend = "xtdb"\n', 'store.backend = "xtdb"\n'])
def test_the_store_is_named_alone_or_in_a_table_with_its_place(home, tmp_path, text):
    write(tmp_path / ".config/ctxd/ctxd.toml", text)
    found = load({}, home)
    assert (found.store_backend, found.store_url) == ("xtdb", f"unix:{found.socket.parent}/xtdb.sock")
    home["CTXD_SOCKET"] = "/run/ctxd/ctxd.sock"
    assert load({}, home).store_url == "unix:/run/ctxd/xtdb.sock", "as the units have it, for a user without a runtime"
    home["CTXD_STORE_URL"] = "http://127.0.0.1:3000"
    assert load({"store.backend": "sqlite"}, home).store_backend == "sqlite"
    assert load({}, home).store_url == "http://127.0.0.1:3000"


@pytest.mark.parametrize("url", ["unix:relative.sock", "ftp://host", "http://", "http://host/path", "127.0.0.1:3000"])
def test_a_node_is_at_a_socket_or_an_http_address(home, url):
    with pytest.raises(ConfigError, match="store.url"):
        load({"store.url": url}, home)


@pytest.mark.requirement("BOX-15")
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"state_dir": "/x/s"}, "state_dir"),
        ({"socket": "/x/s", "state_dir": "/x/s.d"}, "state_dir"),
        ({"state_dir": "/x/y/../s/0123456789abcdef"}, "state_dir"),
        ({"metrics.socket": "/x/s/metrics"}, "metrics.socket"),
        ({"store.url": "unix:/x/s"}, "store.url"),
    ],
)
def test_nothing_else_has_its_path_where_the_directories_of_sandboxes_are(home, settings, key):
    with pytest.raises(ConfigError, match=rf"^command line: {key} = .* is where the directories of sandboxes are"):
        load({"socket": "/x/ctxd.sock", **settings}, home)


def test_a_state_directory_that_a_link_leads_to_among_the_sandboxes_is_refused(home, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "state").symlink_to("s")
    with pytest.raises(ConfigError, match="state_dir"):
        load({"socket": str(tmp_path / "ctxd.sock"), "state_dir": str(tmp_path / "state")}, home)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sokcet = '/x'", "{path}: there is no setting 'sokcet'; did you mean 'socket'?"),
        ("[limits]\nrequest_deadline = 3", "did you mean 'limits.request_deadline_s'?"),
        ("drain_s = 3", "there is no setting 'drain_s'; did you mean 'limits.drain_s'?"),
        ("[limit]\ndrain_s = 3", "there is no setting 'limit'; did you mean 'limits'?"),
        ("zzz = 1", "known settings: socket, socket_group, socket_group_as_root"),
        ("[limits]\ndrain_s = 'soon'", "{path}: limits.drain_s = 'soon' is not seconds from 0 to 600"),
        ("[limits]\ndrain_s = true", "limits.drain_s = True is not seconds"),
        ("[limits]\ndrain_s = nan", "is not seconds"),
        ("[limits]\nconnections_max = 1.5", "is not a whole number from 1 to 65536"),
        ("[log]\nlevel = 'loud'", "log.level = 'loud' is not one of debug, info, warning, error"),
        ("socket = 'relative.sock'", "socket = 'relative.sock' is not an absolute path"),
        ("socket_group = 7", "socket_group = 7 is not a group's name"),
        ("collapse = 3", "there is no setting 'collapse'"),
        ("a = = b", "{path}: not TOML"),
    ],
)
def test_an_invalid_setting_is_rejected_with_its_place_key_and_allowed_values(home, tmp_path, text, message):
    path = write(tmp_path / "bad.toml", text)
    with pytest.raises(ConfigError) as caught:
        load({}, home, file=path)
    assert str(caught.value).startswith(str(path))
    assert message.format(path=path) in str(caught.value)


def test_a_wrong_variable_or_flag_is_refused_by_its_own_name(home):
    with pytest.raises(ConfigError, match=r"^CTXD_LOG_LEVEL: log\.level = 'x'"):
        load({}, {**home, "CTXD_LOG_LEVEL": "x"})
    with pytest.raises(ConfigError, match=r"^CTXD_LOG_LEVLE: there is no setting 'log\.levle'; did you mean 'log\.l"):
        load({}, {**home, "CTXD_LOG_LEVLE": "debug"})
    with pytest.raises(ConfigError, match=r"^command line: limits\.in_flight = 0"):
        load({"limits.in_flight": 0}, home)
    with pytest.raises(ConfigError, match=r"^command line: there is no setting 'socks'"):
        load({"socks": "/x"}, home)


@pytest.mark.parametrize("key", ["socket", "state_dir", "cache_dir", "metrics.socket"])
def test_a_path_that_is_not_utf_8_is_refused(home, key):
    with pytest.raises(ConfigError, match=rf"^command line: {re.escape(key)} = /srv/caf\\xe9 is not UTF-8"):
        load({key: "/srv/caf\udce9"}, home)


def test_a_named_file_that_is_missing_or_not_text_is_refused(home, tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load({}, home, file=tmp_path / "none.toml")
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        load({}, home, file=path)


def test_other_variables_of_ours_are_not_settings(home):
    found = load({}, {**home, "CTXD_SESSION": "s1", "CTXD_FAILPOINTS": "x", "CTXD_LOG_LEVEL": ""})
    assert found == load({}, home)


def test_a_group_is_taken_by_its_name(home, tmp_path):
    found = load({}, home, file=write(tmp_path / "g.toml", "socket_group = 'ctxd'"))
    assert found.socket_group == "ctxd"


def test_the_result_cannot_be_changed(home):
    with pytest.raises(dataclasses.FrozenInstanceError):
        load({}, home).drain_s = 3


def test_every_setting_is_shown_with_its_value_and_origin(home):
    shown = list(load({"socket": "/s.sock"}, home).items())
    assert [key for key, _, _ in shown] == [setting.key for setting in SETTINGS]
    assert shown[0] == ("socket", "/s.sock", "flag")
    assert ("socket_group", "", "default") in shown


@pytest.mark.parametrize("runtime", [True, False])
@pytest.mark.parametrize("root", [True, False])
def test_a_client_looks_where_a_daemon_listens_by_default(home, monkeypatch, runtime, root):
    if not runtime:
        del home["XDG_RUNTIME_DIR"]
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    listens = str(load({}, home).socket)
    assert listens in [place.path for place in socket_places(home)]
    assert find_socket(None, home).path == listens


def test_the_defaults_are_those_of_the_parts_that_they_are_for(home):
    found = load({}, home)
    assert Timing() == Timing(
        deadline_s=found.request_deadline_s, drain_s=found.drain_s, frame_s=found.frame_s, stall_s=found.stall_s
    )
    assert Limits() == Limits(frame_bytes=found.frame_bytes, in_flight=found.in_flight)
    assert found.connections_max == CONNECTIONS_MAX
    assert Collapse() == Collapse(per_turn=found.collapse_per_turn, turns=found.collapse_turns)


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("limits.request_deadline_s", 0.1, 3600.0),
        ("limits.drain_s", 0.0, 600.0),
        ("limits.frame_s", 0.1, 600.0),
        ("limits.stall_s", 0.1, 600.0),
        ("limits.connections_max", 1, 65_536),
        ("limits.frame_bytes", 65_536, 268_435_456),
        ("limits.in_flight", 1, 1024),
        ("collapse.per_turn", 0, 1000),
        ("collapse.turns", 1, 1000),
        ("store.lease_s", 1.0, 3600.0),
        ("store.backlog_rows", 100, 1_000_000_000),
        ("store.backlog_bytes", 1_048_576, 17_592_186_044_416),
    ],
)
def test_a_number_is_taken_from_its_least_to_its_most_as_documented(home, key, least, most):
    (setting,) = (each for each in SETTINGS if each.key == key)
    assert setting.allowed.endswith(f"from {least:g} to {most:g}" if isinstance(most, float) else f"{least} to {most}")
    for value in (least, most, str(least)):
        assert getattr(load({key: value}, home), config.field_of(key)) == type(least)(value)
    step = 0.01 if isinstance(most, float) else 1
    for value in (least - step, most + step, str(most + step), True, "x"):
        with pytest.raises(ConfigError, match=re.escape(key)):
            load({key: value}, home)


def test_the_defaults_are_those_that_are_documented(home):
    found = load({}, home)
    assert (found.request_deadline_s, found.drain_s, found.frame_s, found.stall_s) == (60.0, 5.0, 10.0, 10.0)
    assert (found.connections_max, found.frame_bytes, found.in_flight) == (4096, 16_777_216, 32)
    assert (found.collapse_per_turn, found.collapse_turns) == (5, 3)
    assert (found.store_lease_s, found.store_backlog_rows, found.store_backlog_bytes) == (
        15.0,
        5_000_000,
        4_294_967_296,
    )
    assert (found.store_backend, found.store_shared, found.socket_group_as_root) == ("sqlite", False, False)
