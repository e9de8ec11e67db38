"""Import of the transcripts of a harness: its rate, its cost when nothing changed, and the memory of the daemon.

``import_rate`` is a ratio of rates: MB/s of ``ctx import`` over those of decoding the same lines with msgspec, with the
files in the page cache. ``import_again`` is the time of a second import over that of the first, without the start of
the interpreter. ``import_state`` is the bytes of the state directory afterwards, with its write-ahead logs, over those
of the lines, each of which it keeps as it was. ``import_memory`` is the resident peak of the daemon above idle in MB,
while one session of a single file is imported. Expected order of growth: O(n) in the bytes, O(files) when nothing
changed, O(1) in memory. Without transcripts nothing is measured.
"""

import os
import re
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

import msgspec

from bench.figures import Figure
from bench.recorded_sessions import ROOT
from bench.running import daemon, environment, folder, quick
from bench.sandboxes import resident_mb

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
BYTES = 60_000_000
FILE_BYTES = 1_000_000_000
UUID = re.compile(rb"[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-)")


def renamed(salt: bytes, id: "re.Match[bytes]") -> bytes:
    """Return another beginning of a UUID, the same for the same one."""
    return blake2b(id[0] + salt, digest_size=4).hexdigest().encode()


def write_sessions(place: Path, size: int) -> int:
    """Write copies of real sessions of Claude Code with ids of their own. Returns: the number of their bytes."""
    found = sorted(path for path in (ROOT / "claude-code").rglob("*.jsonl") if path.stat().st_size > 20_000)
    written = number = 0
    while found and written < size:
        salt = str(number).encode()
        for path in found:
            data = UUID.sub(partial(renamed, salt), path.read_bytes())
            copy = place / str(number) / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            written += len(data)
        number += 1
    return written


def write_session(place: Path, size: int) -> int:
    """Write one session of so many bytes, none of them like the others. Returns: the number of its bytes."""
    session, parent, written = str(uuid4()), None, 0
    with (place / f"{session}.jsonl").open("wb") as file:
        while written < size:
            for kind in ("user", "assistant"):
                id, text = str(uuid4()), os.urandom(3000).hex()
                content = text if kind == "user" else [{"type": "text", "text": text}]
                line = msgspec.json.encode(
                    {
                        "type": kind, "uuid": id, "parentUuid": parent, "sessionId": session,
                        "message": {"role": kind, "content": content},
                    }
                )  # fmt: skip
                written += file.write(line + b"\n")
                parent = id
    return written


def decode_s(place: Path) -> float:
    """Seconds to decode every line below ``place``."""
    lines = [line for path in place.rglob("*.jsonl") for line in path.read_bytes().split(b"\n") if line.strip()]
    began = time.perf_counter()
    for line in lines:
        try:
            msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
    return time.perf_counter() - began


def import_s(socket: Path, place: Path) -> float:
    """Seconds of one import, without those of a start."""
    env = environment(CTXD_SOCKET=str(socket))
    times = []
    for words in (["import", "claude", str(place), "--json"], ["--version"]):
        began = time.perf_counter()
        subprocess.run([CTX, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return max(1e-3, times[0] - times[1])


def run() -> Iterator[Figure]:
    """See the module."""
    with folder() as place, daemon(place / "ctxd.sock", place / "state"):
        size = write_sessions(place / "sources", BYTES // 10 if quick() else BYTES)
        if not size:
            return
        bare, first = decode_s(place / "sources"), import_s(place / "ctxd.sock", place / "sources")
        again = import_s(place / "ctxd.sock", place / "sources")
        rates = f"{size / first / 1e6:.1f} MB/s of {size / bare / 1e6:.0f} MB/s decoded, {size / 1e6:.0f} MB"
        yield Figure(name="import_rate", value=bare / first, goal=0.15, better="higher", detail=rates)
        detail = f"{again * 1000:.0f} ms after {first:.1f} s"
        yield Figure(name="import_again", value=again / first, goal=0.02, better="lower", detail=detail)
        kept = sum(path.stat().st_size for path in (place / "state").rglob("*") if path.is_file())
        detail = f"{kept / 1e6:.1f} MB for {size / 1e6:.1f} MB of lines"
        yield Figure(name="import_state", value=kept / size, goal=1.4, better="lower", detail=detail)
    with folder() as place, daemon(place / "ctxd.sock", place / "state") as process:
        (place / "sources").mkdir()
        size = write_session(place / "sources", FILE_BYTES // 20 if quick() else FILE_BYTES)
        idle = peak = resident_mb(process.pid)
        done = threading.Thread(target=import_s, args=(place / "ctxd.sock", place / "sources"))
        done.start()
        while done.is_alive():
            done.join(0.1)
            peak = max(peak, resident_mb(process.pid))
        detail = f"MB above idle ({idle:.0f}) for one session of {size / 1e6:.0f} MB"
        yield Figure(name="import_memory", value=peak - idle, goal=64, better="lower", detail=detail)
