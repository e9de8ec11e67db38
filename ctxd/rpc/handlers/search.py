"""``search.*``: full-text search. Separate like every family. A sandbox searches one of its own sessions."""

import msgspec

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.search.search_queries import SearchQueries
from ctxd.worker_threads import OwnTurns
from ctxd_protocol.methods import search as wire
from ctxd_protocol.methods.declaration import Nothing


class SearchCalls:
    """Handlers of ``search.*``."""

    def __init__(self, search: SearchQueries) -> None:
        self._search = search
        self._own = OwnTurns()

    async def search_query(self, caller: Caller, params: wire.SearchQueryParams) -> wire.SearchQueryResult:
        if not caller.is_confined:
            return await self._search.query(params)
        if params.session is None:
            raise CtxdError("session_not_found", "there is no session to search", hint="Name a session.")
        if params.project is not None:
            # The project's directory would be looked up on the host.
            raise CtxdError("invalid_params", "project is only allowed on host connections", hint="Leave project out.")
        # A query may take seconds: those of one sandbox do not fill the threads.
        async with self._own.of(caller.principal):
            found = await self._search.query(params)
        # The length of the host's journal would reveal the activity of others.
        return msgspec.structs.replace(found, behind=min(1, found.behind))

    async def search_rebuild(self, _: Caller, __: Nothing) -> wire.SearchRebuildResult:
        return await self._search.rebuild()
