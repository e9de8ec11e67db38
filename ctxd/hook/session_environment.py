"""The session in the environment of the commands that Claude Code runs. Separate: only the first hooks of a session
have the file for it."""

import os


def name_session(environ: "os._Environ[str] | dict[str, str]", path: str | None) -> None:
    """Let the commands that Claude Code runs know their session: it sources the file before each of them."""
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
        return  # The event is worth more than the name.
