"""Follows a file in each of ten directories where the kernel grants five watches; prints how, and what was handed on.

Run in a user namespace of its own, which it limits: ``python -m tests.unit.trackers.short_of_watches FOLDER``.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from ctxd.trackers.tracker import Followed
from tests.unit.trackers.following import Handed, make_file_trackers

GRANTED = 5
LIMIT = Path("/proc/sys/user/max_inotify_watches")


async def main(folder: Path) -> None:
    LIMIT.write_text(str(GRANTED))
    files = {str(number): folder / f"d{number}" / "a" for number in range(10)}
    for file in files.values():
        file.parent.mkdir()
        file.write_text("1")
    handed: set[str] = set()
    all_handed = anyio.Event()

    async def handle(keys: Sequence[str]) -> dict[str, bool | None]:
        handed.update(key for key in keys if files[key].read_text() == "2")
        if len(handed) == len(files):
            all_handed.set()
        return dict.fromkeys(keys, True)

    observer = Handed({})
    observer.changed = handle
    said: list[tuple[str, str]] = []
    trackers = make_file_trackers(report=lambda what, directory, reason: said.append((what, reason)))
    async with anyio.create_task_group() as tasks:
        await tasks.start(trackers.run, observer)
        trackers.lease("s", {key: Followed(str(file)) for key, file in files.items()})
        await trackers.wait_until_attached()
        modes = sorted(each.mode for each in trackers.tracked.directories.values())
        for file in files.values():
            file.write_text("2")
        with anyio.fail_after(60):
            await all_handed.wait()
        short = trackers.watches
        LIMIT.write_text("100")
        with anyio.fail_after(60):
            # A directory is watched before that is reported.
            while trackers.watches < len(files) or len(said) < len(files):
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    print(json.dumps({"modes": modes, "watches": short, "said": said}))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
