"""The session in the environment of the commands that Claude Code runs. Separate: only the first hooks of a session get
the file for it."""

import os


def name_session(environ: "os._Environ[str] | dict[str, str]", path: str | None) -> None:
    """Add $CTXD_SESSION, and $CTXD_SOCKET for a ``path``, to the file that Claude Code sources before each command."""
    session = environ.get("CLAUDE_CODE_SESSION_ID", "")
    if not session.replace("-", "").isalnum() or not session.isascii():
        return
    lines = f"export CTXD_SESSION=claude-code-{session}\n".encode()
    if path is not None:
        lines += b"export CTXD_SOCKET='" + os.fsencode(path).replace(b"'", b"'\\''") + b"'\n"
    try:
        with open(environ["CLAUDE_ENV_FILE"], "ab+", 0) as file:
            file.seek(0)
            before = file.read()
            if lines not in before:
                file.write(b"\n" + lines if before and not before.endswith(b"\n") else lines)
    except OSError:
        return  # The event must be delivered all the same.
