"""Hooks in settings of the form that Claude Code and codex share: by event a list of groups, each with its handlers."""

from collections.abc import Mapping
from typing import Any, Final

PROGRAM: Final = "ctx-hook"

TIMEOUT_S: Final = 10
"""Timeout of a hook in seconds, which ends long before: without a timeout, some harnesses kill it after one second."""


class UnsuitableFile(Exception):
    """The file has a form to which hooks cannot be added, or from which they cannot be removed."""


def handlers(groups: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All handlers of hooks by event."""
    return [
        handler
        for event in groups.values()
        if isinstance(event, list)
        for group in event
        for handler in of_group(group)
    ]


def of_group(group: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any value of a settings file
    """The handlers of a group; none for a value of another form."""
    return [each for each in items_of(group) if isinstance(each, dict)]


def items_of(group: Any) -> list[Any]:  # noqa: ANN401 - any value of a settings file
    """All items in a group's list of handlers, even invalid ones."""
    found = group.get("hooks") if isinstance(group, dict) else None
    return found if isinstance(found, list) else []
