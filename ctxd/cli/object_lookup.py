"""Objects of a command: named by an id, or by the path of a file."""

import os
from contextlib import suppress

from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.click_support import Stop, current_directory
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient


def object_id(client: SyncClient, session: str | None, given: str) -> str:
    """Return the id of the object that ``given`` names: an id, or a file's path as the session sees it.

    A relative path starts at the current directory, else at the session's; an id takes precedence over an equal path.
    Raises: ``Stop`` for a path without an object.
    """
    if not given.startswith(("/", "./", "../")):
        if session is not None:
            return _by_either(client, session, given)
        if not os.path.lexists(given) or _is_id(client, given):
            return given
    if session is None:
        raise Stop(USAGE, f"{given!r} is a path, and paths belong to a session", hint="name one with -s SESSION")
    found = client.file_resolve(session, os.path.abspath(given))
    if not found.known:
        message = f"no object for the file {found.display_path}"
        hint = "ctx object ls lists known objects; a file becomes one when an agent reads or lists it"
        raise Stop(NOT_FOUND, message, hint=hint, symbol="object_not_found")
    return found.object


def _by_either(client: SyncClient, session: str, given: str) -> str:
    # If this socket does not offer the call, the command's own call fails with a better message.
    with suppress(InvalidCall):
        try:
            client.object_get(given, session=session, content=False)
        except NotFound:
            here = current_directory()
            for path in (given,) if here is None else (os.path.normpath(os.path.join(here, given)), given):
                found = client.file_resolve(session, path)
                if found.known:
                    return found.object
    return given


def _is_id(client: SyncClient, given: str) -> bool:
    try:
        client.object_get(given, content=False)
    except NotFound:
        return False
    return True
