"""``search.*``: full-text search. A sandbox searches one of its own sessions."""

from ctxd.rpc.caller import Caller
from ctxd.search.search_queries import SearchQueries
from ctxd_protocol.methods import search as wire
from ctxd_protocol.methods.declaration import Nothing


class SearchCalls:
    """Handlers of ``search.*``."""

    def __init__(self, search: SearchQueries) -> None:
        self._search = search

    async def search_query(self, caller: Caller, params: wire.SearchQueryParams) -> wire.SearchQueryResult:
        if caller.is_confined:
            return await self._search.query_in_sandbox(caller.principal, params)
        return await self._search.query(params)

    async def search_rebuild(self, _: Caller, __: Nothing) -> wire.SearchRebuildResult:
        return await self._search.rebuild()
