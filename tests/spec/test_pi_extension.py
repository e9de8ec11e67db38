"""HOK: the part of pi's extension that runs a hook, run by Node."""

import json
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

import ctxd.hook

_TYPES = re.compile(r": (?:any|string|object|Buffer|Promise<string>)(?=[,)=; {]|$)", re.M)


@pytest.mark.requirement("HOK-8")
def test_output_that_arrives_in_the_middle_of_a_character_is_whole(tmp_path: Path) -> None:
    source = Path(ctxd.hook.__path__[0], "pi.ts").read_text()
    begin = source.index("let last")
    function = _TYPES.sub("", source[begin : source.index("\n}\n", begin) + 3])
    writes = "cat >/dev/null; printf '\\303'; sleep 0.3; printf '\\251'"
    script = tmp_path / "hook.mjs"
    script.write_text(
        'import { spawn } from "node:child_process";\n'
        f"const COMMAND = {json.dumps(['sh', '-c', writes])};\n"
        f"{function}"
        'process.stdout.write(await hook({}, "PostToolUse", {}));\n'
    )
    node = which("node")
    assert node is not None
    done = subprocess.run([node, script], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode() == "é"
