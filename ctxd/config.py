"""Configuration: files, environment and flags merged into one frozen ``Config`` and validated before anything starts.

Owns the names, types and defaults of every setting, and the precedence of its sources: a flag, then the environment,
then the user's file, then the system's, then the default. Every value keeps its origin.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ctxd_protocol import default_paths
from ctxd_protocol.secret_types import SecretPolicy

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
Watcher = Literal["auto", "off", "inotify", "native", "polling"]
StoreBackend = Literal["sqlite", "xtdb"]
WindowAim = Literal["cost", "recall"]
Value = str | int | float

SYSTEM_FILE: Final = Path("/etc/ctxd/ctxd.toml")
"""The system's settings; a user's own file overrides them key by key."""


class ConfigError(Exception):
    """A setting that cannot be used. The message names the source, the key, and the allowed values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its dotted key, its allowed values, and its meaning. ``default`` None: derived from the
    environment."""

    key: str
    default: Value | None
    meaning: str
    allowed: str
    read: Callable[[object], Value]
    """Converts a value from TOML, or text. Raises: ``ValueError`` or ``TypeError`` if it is not allowed."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "CTXD_" + self.key.replace(".", "_").upper()


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, validated. Times are in seconds, sizes in bytes.

    ``origins`` maps each key to its source: ``flag``, ``env CTXD_…``, ``file /path``, or ``default``.
    """

    socket: Path
    socket_group: str | None
    socket_group_as_root: bool
    state_dir: Path
    cache_dir: Path
    metrics_socket: Path | None
    log_level: LogLevel
    log_format: LogFormat
    request_deadline_s: float
    drain_s: float
    frame_s: float
    stall_s: float
    connections_max: int
    frame_bytes: int
    in_flight: int
    collapse_per_turn: int
    collapse_turns: int
    models_file: Path | None
    window_aim: WindowAim
    secrets_policy: SecretPolicy
    secrets_rules: Path | None
    artifacts_bytes_max: int
    tracking_watcher: Watcher
    store_backend: StoreBackend
    store_url: str
    store_shared: bool
    store_host: str
    store_lease_s: float
    store_backlog_rows: int
    store_backlog_bytes: int
    origins: Mapping[str, str]

    def items(self) -> Iterator[tuple[str, str, str]]:
        """Key, value as text, and origin of every setting, in the order of ``SETTINGS``."""
        for setting in SETTINGS:
            value = getattr(self, field_of(setting.key))
            yield setting.key, "" if value is None else str(value), self.origins[setting.key]


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
) -> Config:
    """Return the settings in force. ``flags`` are by dotted key, and None means not given; ``environ`` None: the
    process's.

    ``file`` (or ``$CTXD_CONFIG``) is read instead of the user's and the system's files, and must exist.

    Raises: ``ConfigError`` for the first invalid setting.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for origin, key, raw in _raw_values(flags or {}, environ, file):
        setting = _known(key, origin)
        values[key], origins[key] = _checked(setting, raw, origin), origin
    return _whole(values, origins, environ)


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's configuration file."""
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(default_paths.home(environ), ".config")
    return Path(folder, "ctxd", "ctxd.toml")


def default_socket(environ: Mapping[str, str], *, root: bool) -> Path:
    """Return the default socket path, which clients also try by default."""
    if root:
        return Path(default_paths.SYSTEM_SOCKET)
    runtime = default_paths.runtime_socket(environ)
    return Path(runtime or default_paths.socket_in(str(default_state_dir(environ, root=False))))


def _models_file(environ: Mapping[str, str]) -> str:
    """Return the user's or the system's file of models, empty without one."""
    places = (user_file(environ).with_name("models.toml"), SYSTEM_FILE.with_name("models.toml"))
    return next((str(path) for path in places if path.exists()), "")


def store_url_beside(socket: Path) -> str:
    """Return the default address of the XTDB node for a daemon that listens at ``socket``."""
    return f"unix:{socket.with_name('xtdb.sock')}"


def default_state_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    """Return the default state directory; systemd's ``StateDirectory=`` has precedence."""
    if managed := environ.get("STATE_DIRECTORY"):
        return Path(managed.split(":")[0])
    return Path(default_paths.SYSTEM_STATE_DIR if root else default_paths.user_state_dir(environ))


def _default_cache_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    """Return the default cache directory; systemd's ``CacheDirectory=`` has precedence."""
    if managed := environ.get("CACHE_DIRECTORY"):
        return Path(managed.split(":")[0])
    user = environ.get("XDG_CACHE_HOME") or os.path.join(default_paths.home(environ), ".cache")
    return Path("/var/cache/ctxd" if root else os.path.join(user, "ctxd"))


# --- allowed values ---


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def _absolute(value: object) -> str:
    path = os.path.expanduser(_text(value))
    if not os.path.isabs(path):
        raise ValueError
    return os.path.normpath(path)


def _one_of(*allowed: str) -> tuple[str, Callable[[object], Value]]:
    def read(value: object) -> Value:
        if value not in allowed:
            raise ValueError
        return value

    return "one of " + ", ".join(allowed), read


def _whole_number(least: int, most: int) -> tuple[str, Callable[[object], Value]]:
    def read(value: object) -> Value:
        number = int(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError
        return number

    return f"a whole number from {least} to {most}", read


def _seconds(least: float, most: float) -> tuple[str, Callable[[object], Value]]:
    def read(value: object) -> Value:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TypeError
        number = float(value)
        if not least <= number <= most:
            raise ValueError
        return number

    return f"seconds from {least:g} to {most:g}", read


def _address(value: object) -> str:
    text = _text(value)
    if text.startswith("unix:"):
        return f"unix:{_absolute(text.removeprefix('unix:'))}"
    if not re.fullmatch(r"https?://[^/\s]+/?", text):
        raise ValueError
    return text


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError
    return value == "true"


_FLAG = ("true or false", _flag)
_PATH = ("an absolute path", _absolute)

SETTINGS: Final = (
    Setting("socket", None, "path of the socket", *_PATH),
    Setting("socket_group", "", "group that may connect besides the owner", "a group's name", _text),
    Setting(
        "socket_group_as_root", False, "let socket_group read every file through a daemon that runs as root", *_FLAG
    ),
    Setting("state_dir", None, "directory of the journal and the artifacts", *_PATH),
    Setting("cache_dir", None, "directory of the search index, which can be made again from the journal", *_PATH),
    Setting("metrics.socket", "", "path of a socket that serves Prometheus metrics over HTTP; empty: none", *_PATH),
    Setting("log.level", "info", "minimum log level", *_one_of("debug", "info", "warning", "error")),
    Setting(
        "log.format", "auto", "log format; auto: console on a terminal, else JSON", *_one_of("auto", "json", "console")
    ),
    Setting("limits.request_deadline_s", 60.0, "deadline of a call", *_seconds(0.1, 3600)),
    Setting("limits.drain_s", 5.0, "time for calls in flight to finish when the daemon stops", *_seconds(0, 600)),
    Setting("limits.frame_s", 10.0, "time from the first byte of a request to its last", *_seconds(0.1, 600)),
    Setting("limits.stall_s", 10.0, "time that a client may leave replies unread", *_seconds(0.1, 600)),
    Setting("limits.connections_max", 4096, "maximum number of connections per listener", *_whole_number(1, 65_536)),
    Setting(
        "limits.frame_bytes", 16 * 2**20, "maximum size of a request in bytes", *_whole_number(64 * 2**10, 256 * 2**20)
    ),
    Setting("limits.in_flight", 32, "maximum number of calls in flight per connection", *_whole_number(1, 1024)),
    Setting("collapse.per_turn", 5, "tool calls that stay active per turn, newest first", *_whole_number(0, 1000)),
    Setting("collapse.turns", 3, "number of turns whose tool calls may stay active", *_whole_number(1, 1000)),
    Setting(
        "models.file", None, "file of models with their prices and limits, in addition to the built-in ones", *_PATH
    ),
    Setting(
        "window.aim",
        "cost",
        "aim of repacks: full history's recall at less cost, or more recall at no more cost",
        *_one_of("cost", "recall"),
    ),
    Setting(
        "secrets.policy",
        "flag",
        "treatment of secrets in captured content, for sessions that set no policy",
        *_one_of("off", "flag", "redact"),
    ),
    Setting("secrets.rules", "", "file of secret detection rules, in addition to the built-in ones", *_PATH),
    Setting(
        "artifacts.bytes_max",
        0,
        "bytes of artifacts above which those that nothing refers to are collected, ephemeral ones first, then the"
        " least recently used; 0 for no bound",
        *_whole_number(0, 2**60),
    ),
    Setting(
        "tracking.watcher",
        "auto",
        "watcher for files that agents have read; auto: the best available",
        *_one_of("auto", "off", "inotify", "native", "polling"),
    ),
    Setting("store.backend", "sqlite", "backend for historical reads", *_one_of("sqlite", "xtdb")),
    Setting("store.url", None, "address of the XTDB node", "unix:/path or http://host:port", _address),
    Setting("store.shared", False, "true if daemons of other hosts use the same XTDB log", *_FLAG),
    Setting("store.host", "", "name of this host for the other hosts; empty: the host name", "a name", _text),
    Setting("store.lease_s", 15.0, "silence after which another host may take over a session", *_seconds(1, 3600)),
    Setting(
        "store.backlog_rows", 5_000_000, "maximum number of writes waiting for the node", *_whole_number(100, 10**9)
    ),
    Setting(
        "store.backlog_bytes",
        4 * 2**30,
        "maximum size of the writes waiting for the node in bytes",
        *_whole_number(2**20, 2**44),
    ),
)
"""All settings."""

_BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
_KEY_OF_VARIABLE: Final = {setting.variable: setting.key for setting in SETTINGS}
_SECTIONS: Final = {key.partition(".")[0] for key in _BY_KEY if "." in key}


# --- from the sources to the values ---


def _raw_values(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Iterator[tuple[str, str, object]]:
    """Yield origin, key and raw value of every source in ascending precedence."""
    for path, must_exist in _files(environ, file):
        yield from _of_file(path, must_exist=must_exist)
    for name, text in environ.items():
        if not text or not name.startswith("CTXD_"):
            continue
        section, _, rest = name.removeprefix("CTXD_").lower().partition("_")
        if name in _KEY_OF_VARIABLE:
            yield f"env {name}", _KEY_OF_VARIABLE[name], text
        elif section in _SECTIONS and rest:
            yield f"env {name}", f"{section}.{rest}", text  # refused, with the nearest name
    for key, value in flags.items():
        if value is not None:
            yield "flag", key, os.fspath(value) if isinstance(value, os.PathLike) else value


def _files(environ: Mapping[str, str], file: Path | None) -> list[tuple[Path, bool]]:
    named = file or (Path(environ["CTXD_CONFIG"]) if environ.get("CTXD_CONFIG") else None)
    return [(named, True)] if named else [(SYSTEM_FILE, False), (user_file(environ), False)]


def _of_file(path: Path, *, must_exist: bool) -> Iterator[tuple[str, str, object]]:
    origin = f"file {path}"
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: not a regular file; name one with --config")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{path}: no such file; create it, or name another with --config") from None
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; grant the daemon's user access") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    for key, value in document.items():
        if isinstance(value, dict) and key in _SECTIONS:
            yield from ((origin, f"{key}.{inner}", each) for inner, each in value.items())
        elif key == "store":
            # Short for ``store.backend``; a TOML file cannot contain both the short form and the table.
            yield origin, "store.backend", value
        else:
            yield origin, key, value


def _known(key: str, origin: str) -> Setting:
    if key in _BY_KEY:
        return _BY_KEY[key]
    names = [*_BY_KEY, *_SECTIONS]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5) or [
        name for name in _BY_KEY if name.rpartition(".")[2] == key.rpartition(".")[2]
    ]
    advice = f"did you mean {near[0]!r}?" if near else "known settings: " + ", ".join(_BY_KEY)
    raise ConfigError(f"{_place(origin)}: there is no setting {key!r}; {advice}")


def _checked(setting: Setting, raw: object, origin: str) -> Value:
    try:
        return setting.read(raw)
    except (ValueError, TypeError):
        raise ConfigError(f"{_place(origin)}: {setting.key} = {raw!r} is not {setting.allowed}") from None


def _whole(values: dict[str, Value], origins: dict[str, str], environ: Mapping[str, str]) -> Config:
    root = os.geteuid() == 0
    for setting in SETTINGS:
        origins.setdefault(setting.key, "default")
        if setting.default is not None:
            values.setdefault(setting.key, setting.default)
    values.setdefault("socket", str(default_socket(environ, root=root)))
    values.setdefault("store.url", store_url_beside(Path(str(values["socket"]))))
    values.setdefault("models.file", _models_file(environ))
    values.setdefault("state_dir", str(default_state_dir(environ, root=root)))
    values.setdefault("cache_dir", str(_default_cache_dir(environ, root=root)))
    _require_utf8(values, origins)
    _require_apart(values, origins)
    fields: dict[str, Any] = {field_of(key): value for key, value in values.items()}
    for key in ("socket", "state_dir", "cache_dir"):
        fields[key] = Path(fields[key])
    fields["metrics_socket"] = Path(fields["metrics_socket"]) if fields["metrics_socket"] else None
    fields["socket_group"] = fields["socket_group"] or None
    fields["models_file"] = Path(fields["models_file"]) if fields["models_file"] else None
    fields["secrets_rules"] = Path(fields["secrets_rules"]) if fields["secrets_rules"] else None
    return Config(**fields, origins=origins)


def _require_utf8(values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
    """Raises: ConfigError if a path is not UTF-8: statuses and records could not name it."""
    for key in ("socket", "state_dir", "cache_dir", "metrics.socket"):
        try:
            str(values[key]).encode()
        except UnicodeEncodeError:
            shown = os.fsencode(str(values[key])).decode("utf-8", "backslashreplace")
            raise ConfigError(f"{_place(origins[key])}: {key} = {shown} is not UTF-8: take another path") from None


def _require_apart(values: Mapping[str, Value], origins: Mapping[str, str]) -> None:
    """Raises: ConfigError if a path lies in the directory where the directories of sandboxes are created and
    removed."""
    above, name = os.path.split(str(values["socket"]))
    folder = os.path.join(above, default_paths.sandboxes_name(name))
    sandboxes = os.path.realpath(folder)
    for key in ("socket", "state_dir", "cache_dir", "metrics.socket", "store.url"):
        path = str(values[key]).removeprefix("unix:")
        if path.startswith("/") and Path(os.path.realpath(path)).is_relative_to(sandboxes):
            message = f"{_place(origins[key])}: {key} = {values[key]!r} is where the directories of sandboxes are"
            raise ConfigError(f"{message}, beside the socket: take a path outside of {folder}")


def field_of(key: str) -> str:
    """Return the name of the ``Config`` field for a key: limits without their section, other keys with it."""
    return key.removeprefix("limits.").replace(".", "_")


def _place(origin: str) -> str:
    return {"flag": "command line"}.get(origin, origin.removeprefix("file ").removeprefix("env "))
