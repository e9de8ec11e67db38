"""Normalised addresses of git remotes, independent of protocol, user and spelling of the host. Pure.

``https://user:token@GitHub.com/o/r.git``, ``ssh://git@github.com:22/o/r`` and ``git@github.com:o/r`` are all
``github.com/o/r``.
"""

import re
from posixpath import normpath
from typing import Final

REMOTE_CHARS_MAX: Final = 512
"""Characters of a remote in its normal form; a longer one is not kept."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.S)
_SCP: Final = re.compile(r"(?:[^@/:]*@)?(\[[0-9A-Fa-f:.]+\]|[^:/@\[\]]{2,}):(?!:)(.*)", re.S)
_HELPER: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]*)::(.+)", re.S)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443", "git": "9418"}
_SSH: Final = frozenset({"ssh", "git+ssh", "ssh+git"})

_ALIASES: Final = {
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org",
}
"""Hosts that serve SSH on the HTTPS port, with the host that each is an alias of."""


def normal_remote(url: str, directory: str = "/") -> str | None:
    """The normal form of ``url``, a remote of the repository in ``directory``, without credentials; None if it has no
    address (empty, ``ext::``, with control characters) or is too long."""
    text = url.strip()
    if not text or len(text) > REMOTE_CHARS_MAX or not text.isprintable():
        return None
    if (helper := _HELPER.fullmatch(text)) is not None:
        # After ext:: and fd:: come a command and a number.
        inner = None if helper[1] in ("ext", "fd") else normal_remote(helper[2], directory)
        return None if inner is None else f"{helper[1]}::{inner}"
    if (found := _URL.fullmatch(text)) is not None:
        scheme, place, path = found[1].lower(), found[2], found[3]
        if scheme == "file":
            return _local(path, directory)
        # Drop query and fragment: they may contain tokens.
        return _remote(_host(scheme, place), re.split("[?#]", path, maxsplit=1)[0])
    if (found := _SCP.fullmatch(text)) is not None:
        return _remote(_host("ssh", found[1]), found[2])
    return _local(text, directory)


def _host(scheme: str, place: str) -> str:
    host, port = place.rpartition("@")[2].lower(), ""
    if (found := re.fullmatch(r"(\[[^\]]*\]|[^:]*):([0-9]*)", host)) is not None:
        host, port = found[1], found[2]
    host = host.rstrip(".")
    # A server has the same repositories for SSH on any port and for the web; web servers on two ports are two servers.
    if not port or scheme in _SSH or port == _DEFAULT_PORTS.get(scheme):
        return _ALIASES.get(host, host)
    return f"{host}:{port}"


def _remote(host: str, path: str) -> str | None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    plain = _without_suffix("/".join(parts))
    return f"{host}/{plain}" if host and plain else None


def _local(path: str, directory: str) -> str | None:
    whole = normpath(path if path.startswith("/") else f"{directory}/{path}")
    plain = _without_suffix("/" + whole.lstrip("/")).rstrip("/")
    return f"file:{plain}" if plain else None


def _without_suffix(path: str) -> str:
    path = path.removesuffix("/.git")
    return path.removesuffix(".git") if not path.endswith("/.git") else path
