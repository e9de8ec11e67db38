"""Entry point of ``ctx``: runs ``ctx current``, for which hooks wait, before importing anything else."""

import sys
from typing import Final

_NOT_FOUND: Final = 3
_INTERRUPTED: Final = 130


def main() -> None:
    """Run the program and exit."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _run() -> None:
    if sys.argv[1:] == ["current"] and sys.stdout is not None and sys.stderr is not None:
        from ctxd.cli.current_context_lookup import UnknownSession, look

        try:
            found = look()
        except UnknownSession as unknown:
            sys.stderr.write(f"ctx: {unknown}; {unknown.hint}\n")
            sys.exit(_NOT_FOUND)
        if found is None:
            sys.exit(_NOT_FOUND)
        try:
            sys.stdout.write(found["context_id"] + "\n")
            sys.stdout.flush()
        except OSError:
            pass  # The command below reports it.
        else:
            sys.exit(0)
    from ctxd.cli.main import main as every_command

    every_command()
