"""Calls that move an object between the sets of a session."""

from ctxd_client.wire import Call
from ctxd_protocol.methods import MembershipParams, MembershipResult


def session_activate(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Load an object's content into the window. ``object`` may be a unique prefix of 8 characters or more.

    Example: ``await client.session_activate("s1", "3f9a01bc")``
    """
    return Call("session.activate", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)


def session_deactivate(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Take an object's content out of the window; a metadata line stays.

    Example: ``await client.session_deactivate("s1", "3f9a01bc")``
    """
    return Call("session.deactivate", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)


def session_pin(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Exempt an object from auto-collapse and from budget drops.

    Example: ``await client.session_pin("s1", "3f9a01bc")``
    """
    return Call("session.pin", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)


def session_unpin(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Undo a pin.

    Example: ``await client.session_unpin("s1", "3f9a01bc")``
    """
    return Call("session.unpin", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)


def session_pool_add(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Show an indexed object as metadata.

    Example: ``await client.session_pool_add("s1", "3f9a01bc")``
    """
    return Call("session.pool_add", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)


def session_pool_remove(
    session: str,
    object: str,
    *,
    op_id: str | None = None,
) -> Call[MembershipResult]:
    """Hide an object's metadata; it stays indexed.

    Example: ``await client.session_pool_remove("s1", "3f9a01bc")``
    """
    return Call("session.pool_remove", MembershipParams(session=session, object=object, op_id=op_id), MembershipResult)
