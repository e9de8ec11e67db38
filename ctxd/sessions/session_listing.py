"""Listings of the sessions of this host: resolves the filters of a request, and returns a page."""

from collections.abc import Awaitable, Callable

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.sessions.live_session import Accepted
from ctxd.sessions.project_match import ProjectFilter
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_catalog import Filters
from ctxd_protocol.methods.session_list import SessionListParams, SessionListResult


class SessionLists:
    """Listings of ``sessions``."""

    def __init__(
        self, sessions: Sessions, indexer: Indexer, naming: Callable[[str], Awaitable[frozenset[str]]]
    ) -> None:
        """``naming`` returns the sessions with a tool call that names a file: imported sessions do not index files."""
        self._sessions = sessions
        self._indexer = indexer
        self._naming = naming

    async def page(self, params: SessionListParams) -> Accepted:
        """Return a page of the sessions of this host, which may be sent once everything in it is durable.

        Raises: CtxdError invalid_params, invalid_path, and those of the store. Cancel: safe.
        """
        filters = await self.filters(params)
        catalog = self._sessions.catalog
        found = catalog.page(filters, params.limit, params.cursor)
        rows, barrier = self._sessions.summaries(found.sessions)
        result = SessionListResult(
            sessions=tuple(rows),
            next_cursor=found.cursor,
            total=catalog.listed_count if params.cursor is None else None,
            archived=found.archived,
            removed=found.removed,
            forks=found.forks,
        )
        return Accepted(barrier, lambda _: result)

    async def filters(self, params: SessionListParams) -> Filters:
        """Resolve the filters in ``params`` on this host. Raises and cancel: as ``page``."""
        project, knowing = None, None
        if params.project is not None:
            if params.project.startswith("/"):
                project = ProjectFilter(await self._sessions.project_at(params.project, package=True))
            else:
                project = ProjectFilter(name=params.project)
        if params.file is not None:
            knowing = await self._knowing(params.file)
        return Filters(params, project, knowing)

    async def _knowing(self, path: str) -> frozenset[str]:
        if not path.startswith("/"):
            message = f"the file {path[:100]!r} is relative"
            raise CtxdError("invalid_path", message, hint="Give an absolute path of the host.")
        host = self._sessions.host_filesystem_id
        mounts = MountTable((), filesystem_id=host, host_filesystem_id=host)
        id, _ = await self._indexer.resolve(mounts, "/", path)
        return frozenset(await self._sessions.knowing(id)) | await self._naming(path)
