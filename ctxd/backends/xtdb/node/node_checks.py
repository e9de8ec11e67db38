"""Checks of a node and its installation: findings, each with a verdict and a fix."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ctxd.backends.xtdb.messages import strip_namespaces
from ctxd.backends.xtdb.node.install import check_jars
from ctxd.backends.xtdb.node.launch import request
from ctxd.backends.xtdb.node.node_layout import Installation, NodeFailure, find_java, listed_jars
from ctxd.doctor_findings import Finding, fail, ok, warn

VERSION: Final = "1.24"
"""The XTDB version that ctxd supports."""

_LAG_WAIT_MS: Final = 3000


def look(installation: Installation, url: str, environ: Mapping[str, str]) -> list[Finding]:
    """Check Java, the installation, and the node at ``url``; only the node if it was installed by other means. Takes as
    long as the first response, and up to 3 s more to see whether the index is behind. Changes nothing."""
    found = list(_node(url))
    ours = url.startswith("unix:") or installation.directory.exists()
    return [*(_machine(installation, environ, _answers(found)) if ours else ()), *found]


def _answers(found: list[Finding]) -> bool:
    return any(finding.name == "node" and finding.verdict != "fail" for finding in found)


def _machine(installation: Installation, environ: Mapping[str, str], node_runs: bool) -> Iterator[Finding]:
    if node_runs and not installation.directory.exists():
        # A service's installation is in another place than the user's.
        fix = "name its place, to have its jars checked too: $CTXD_XTDB_HOME, or ctxd xtdb check --directory"
        yield warn("installation", f"a node runs that is not installed in {installation.directory}", fix)
        return
    try:
        java = find_java(environ)
        yield ok("java", f"{java.path}, {java.version}")
    except NodeFailure as failure:
        yield fail("java", failure.message, failure.remedy)
    remedy = f"Run ctxd xtdb install --directory {installation.directory}"
    try:
        record = installation.whole()
    except NodeFailure as failure:
        yield fail("installation", failure.message, failure.remedy)
        return
    if wrong := check_jars(installation.jars, listed_jars()):
        yield fail("installation", f"{installation.directory}: " + "; ".join(wrong[:3]), remedy)
    elif not installation.archive.exists():
        yield warn("installation", f"{installation.directory} has no archive of classes: starts take longer", remedy)
    else:
        yield ok("installation", f"{installation.directory}, every jar as listed, made with Java {record.java_version}")


def _node(url: str) -> Iterator[Finding]:
    if url.startswith("unix:"):
        yield _socket(Path(url.removeprefix("unix:")))
    elif not any(url.startswith(f"http://{host}") for host in ("127.0.0.1", "localhost", "[::1]")):
        yield warn(
            "socket",
            f"{url} is on another host",
            "restrict access: any program that can reach a node can read and write everything",
        )
    try:
        status, reply = request(url, "status")
        facts = strip_namespaces(reply)
    except (NodeFailure, ValueError) as error:
        remedy = error.remedy if isinstance(error, NodeFailure) else "correct store.url: no XTDB node responds there"
        yield fail("node", str(error), remedy)
        return
    if status != 200:
        yield fail("node", f"{url} responds with status {status}: {facts.get('message')}", "read its log")
        return
    yield from _facts(facts)
    try:
        yield _lag(url)
    except (NodeFailure, ValueError) as error:
        yield fail(
            "lag", f"{url} reports its status, and then stops responding: {error}", "restart the node, and read its log"
        )


def _socket(path: Path) -> Finding:
    try:
        found = path.lstat()
    except OSError as error:
        return fail("socket", f"{path}: {error.strerror}", "start the node: run ctxd xtdb run")
    if not stat.S_ISSOCK(found.st_mode):
        return fail("socket", f"{path} is not a socket", "name another, or move it away")
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        return fail(
            "socket",
            f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}, {mode:#o} too wide)",
            f"run chmod 600 {path}",
        )
    if os.geteuid() not in (found.st_uid, 0):
        return warn("socket", f"{path} belongs to user {found.st_uid}", "run the node as the daemon's own user")
    return ok("socket", f"{path}, mode 0600")


def _facts(facts: Mapping[str, Any]) -> Iterator[Finding]:
    version = str(facts.get("version"))
    if version.startswith(VERSION + "."):
        yield ok("node", f"XTDB {version}, index version {facts.get('index-version')}, {facts.get('kv-store')}")
    else:
        yield warn("node", f"XTDB {version}", f"install XTDB {VERSION}, for which ctxd is made")
    failed = facts.get("ingester-failed?")
    if failed is False:
        yield ok("ingester", "running")
    else:
        yield fail(
            "ingester",
            "stopped: the node takes writes and indexes none",
            "restart the node; if it stops again, read its log",
        )
    synced = facts.get("synced?")
    if synced is None:
        yield warn("sync", "the server does not report whether it flushes log and documents", "set :sync? true on both")
    elif synced:
        yield ok("sync", "log and documents are on disk before a write is answered")
    else:
        yield warn(
            "sync",
            "the last writes are lost if the machine stops",
            "set :sync? true on the log's and the documents' store",
        )
    if facts.get("functions-off?") is False:
        yield fail(
            "functions", "queries may call any function of the JVM", "set :fn-allow-list [] in :xtdb/query-engine"
        )


def _lag(url: str) -> Finding:
    status, _ = request(url, "sync", {"timeout": _LAG_WAIT_MS}, timeout_s=_LAG_WAIT_MS / 1000 + 10)
    if status == 200:
        return ok("lag", "everything in the log is indexed")
    ids = [_tx_id(url, which) for which in ("latest-submitted-tx", "latest-completed-tx")]
    return warn(
        "lag",
        f"the log is at transaction {ids[0]}, the index at {ids[1]}",
        "wait; if the index stands still, read the node's log",
    )


def _tx_id(url: str, which: str) -> object:
    status, reply = request(url, which)
    return strip_namespaces(reply).get("tx-id") if status == 200 else None
