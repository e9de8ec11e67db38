"""The examples in docstrings run as they stand, against a real daemon."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import anyio
import pytest

import ctxd_client
from ctxd_client import Client, InvalidCall, Session, SyncClient, SyncSession, connect, connect_sync
from tests.client.running import Running
from tests.client.test_api import public

NAMES = {name: getattr(ctxd_client, name) for name in ctxd_client.__all__}
NUMBERS = count(1)

COMMIT = "ctx-9d216d08"
"""The commit that examples name."""


def one_liners(kind: type) -> list[tuple[str, str]]:
    return [
        (name, " ".join(found.split()))
        for name in dict.fromkeys(public(kind))
        for found in re.findall(r"Example: ``(.*?)``", inspect.getdoc(getattr(kind, name)) or "", re.S)
    ]


def cases(*kinds: type) -> list[object]:
    return [pytest.param(name, text, id=f"{kind.__name__}.{name}") for kind in kinds for name, text in one_liners(kind)]


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "a.py").write_text("print('A')\n")
    (folder / "src").mkdir()
    with Running(folder) as daemon:
        yield daemon


def prepared(client: SyncClient, folder: str, name: str, text: str) -> tuple[str, str]:
    """A session with all that the example needs, and the example with the ids that are there."""
    id = f"s-{next(NUMBERS)}"
    boxed = {"filesystem_id": f"fs-{id}"} if name.startswith("sandbox_") else {}
    s = client.session(id, agent="demo", mounts={"/workspace": folder}, workdir="/workspace", **boxed)
    s.user("fix the bug")
    s.record(f"{id}-call", "bash", "ok\n", args={"command": "make"})
    s.assemble()
    if "tag:latest" in text:
        client.artifact_tag("latest", artifact=client.artifact_put(data=b"bytes").artifact)
    if name.endswith(("usage", "epoch", "epoch_show")):
        s.assemble(format="anthropic-messages", model="claude-sonnet-5")
    if name.endswith("unpin"):
        s.pin(f"{id}-call")
    for old, new in (('"s1"', f'"{id}"'), ('"call_1"', f'"{id}-call"'), ('"call_3"', f'"{id}-new"')):
        text = text.replace(old, new)
    if COMMIT in text:
        delta = '{"type":"user","message":{"content":"Why?"}}\n'
        text = text.replace(COMMIT, client.commit_checkpoint("claude-code-v1", delta, session=id).commit.commit)
    if "box-1" in text:
        text = text.replace("box-1", client.sandbox_register([id]).sandbox.sandbox)
    return id, text


@contextmanager
def refused_on_the_embedded_store(name: str) -> Iterator[None]:
    """Owners of sessions and Datalog need an XTDB node; without one the call is refused."""
    if name not in ("session_owner", "session_hosts", "object_query"):
        yield
        return
    with pytest.raises(InvalidCall, match="unsupported"):
        yield


@pytest.mark.requirement("CLT-6")
@pytest.mark.parametrize(("name", "text"), cases(SyncClient, SyncSession))
def test_an_example_of_the_synchronous_client_runs(host, name, text):
    with connect_sync(host.socket) as client:
        id, text = prepared(client, str(host.folder), name, text)
        if name == "events_unsubscribe":
            text = text.replace("(1)", f"({client.events_subscribe(id).subscription})")
        with refused_on_the_embedded_store(name):
            exec(text, {**NAMES, "client": client, "s": client.session(id)})


@pytest.mark.requirement("CLT-6")
@pytest.mark.parametrize(("name", "text"), cases(Client, Session))
def test_an_example_of_the_client_runs(host, name, text):
    async def run() -> None:
        with connect_sync(host.socket) as plain:
            id, example = prepared(plain, str(host.folder), name, text)
            async with connect(host.socket) as client:
                if name == "events_unsubscribe":
                    number = (await client.events_subscribe(id)).subscription
                    example = example.replace("(1)", f"({number})")
                space = {**NAMES}
                exec(f"async def example(client, s):\n    {example}", space)
                with refused_on_the_embedded_store(name):
                    await space["example"](client, await client.session(id))

    anyio.run(run)


def block(of: object) -> str:
    _, _, text = (inspect.getdoc(of) or "").partition("Example::\n")
    return textwrap.dedent(text).strip()


@pytest.mark.requirement("CLT-6")
def test_the_examples_of_connecting_run(host, monkeypatch, capsys):
    monkeypatch.setenv("CTXD_SOCKET", host.socket)
    exec(block(connect_sync), {**NAMES})
    space = {**NAMES}
    exec("async def example():\n" + textwrap.indent(block(connect), "    "), space)
    anyio.run(space["example"])
    assert capsys.readouterr().out.count("fix the bug") == 2


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_the_example_of_following_is_code(kind):
    text = block(kind.follow)
    assert "client.follow" in text
    compile("async def example():\n" + textwrap.indent(text, "    "), "follow", "exec")
    assert ("async" in text) == (kind is Client)
