"""Requests to a node by its socket, without the client of ctxd."""

import json

import aiohttp

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.messages import strip_namespaces

TYPE = "application/transit+json"


class Http:
    """Requests to a node by its socket, and what is answered: status, and value by names, or text if not transit."""

    def __init__(self, path):
        self._path = path

    async def __aenter__(self):
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._path, limit=100))
        return self

    async def __aexit__(self, *error):
        await self._session.close()

    async def send(self, method, operation, params=None, *, body=None, type=TYPE):
        headers = {"Content-Type": type} if body is not None else {}
        async with self._session.request(
            method, f"http://node/_xtdb/{operation}", params=params, data=body, headers=headers
        ) as answer:
            content = await answer.read()
            if answer.content_type != TYPE:
                return answer.status, content.decode()
            value = transit.decode(content)
            return answer.status, strip_namespaces(value) if isinstance(value, dict) else value

    async def get(self, operation, **params):
        return await self.send("GET", operation, {name.replace("_", "-"): value for name, value in params.items()})

    async def submit(self, *ops):
        body = json.dumps({"~:tx-ops": [[f"~:xtdb.api/{op[0]}", *op[1:]] for op in ops]}).encode()
        return await self.send("POST", "submit-tx", body=body)

    async def put(self, id, at="~m1000", **fields):
        status, told = await self.submit(["put", {"~:xt/id": id, **{f"~:{key}": fields[key] for key in fields}}, at])
        assert status == 202, told
        return told["tx-id"]

    async def committed(self, *ops):
        status, told = await self.submit(*ops)
        assert status == 202, told
        tx_id = told["tx-id"]
        status, told = await self.get("tx-committed", tx_id=tx_id, await_tx_id=tx_id)
        assert status == 200, told
        return told["tx-committed?"]

    async def query(self, query, *args):
        return await self.send("POST", "query", body=json.dumps({"~:query": query, "~:in-args": args}).encode())


def explained(told, operation, kind=None):
    """True if a failure has its class, its message and its operation."""
    assert told["class"] and told["message"], told
    assert told["operation"] == operation
    assert kind is None or kind in told["class"], told
    return True
