"""OBJ: what an object is, which ones are the same, and that its hashes can be made again from what a client is told."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.object_types import ObjectVersion
from ctxd_protocol.session_types import Message, Mount
from tests.spec.refusal import refused

AWKWARD = 'Größe "1"\\ \u20ac\U0001f600.PY'
"""A name with a quote, a backslash, a blank and characters of two to four bytes."""

ARGS = {
    "\ufb33": 1,
    "\U0001f600": 2,
    "ö": '\u2028\x7f/"\\\b',
    "a": [1.0, 1e21, 1e-7, 333333333.33333329, -0.0, 9007199254740991, True, None],
    "B": {"b": {}, "A": []},
}
"""Keys whose order in UTF-16 is not that of their code points, and numbers that encoders differ on."""


def hashed(value: Any) -> str:
    """SHA-256 of the canonical JSON of ``value``, by an implementation of RFC 8785 that is not ctxd's."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def content_hash(version: ObjectVersion) -> str:
    """The content hash of ``version``, made from its payload. Content that is null is absent."""
    return hashed({key: value for key, value in version.payload.items() if key != "content" or value is not None})


def identity(session: SyncSession, path: str) -> str:
    """The identity of the file that ``session`` calls ``path``, made from where the file lies."""
    place = session.resolve(path)
    source = {"type": "filesystem", "filesystemId": place.filesystem_id, "path": place.canonical_path}
    return hashed({"type": "file", "source": source})


@dataclass(frozen=True)
class Household:
    """A session with an object of every type, and files in every state."""

    session: SyncSession
    ids: dict[str, str]


@pytest.fixture
def household(start, client: SyncClient, tree: Path) -> Household:
    s = start(system_prompt="Be brief.")
    (tree / "text.py").write_text("Größe = 1\n")
    (tree / "empty").write_text("")
    (tree / "unread.md").write_text("# Unread\n")
    (tree / "binary.bin").write_bytes(b"\x00\xff")
    (tree / "gone.py").write_text("gone\n")
    with (tree / "large").open("wb") as large:
        large.truncate(2**40)
    ids = {path.name: s.read(path.name).object for path in sorted(tree.iterdir()) if path.name != "unread.md"}
    (tree / "gone.py").unlink()
    assert client.file_index(s.id, "gone.py", cause="check").outcome == "deleted"
    s.discover(["unread.md"])
    ids["unread.md"] = s.resolve("unread.md").object
    s.user("Look.")
    ids["call"] = s.record(f"call-{s.id}", "bash", "ok\n").object
    s.append([Message(role="toolcall", toolcall=ids["call"])])
    refs = [ids["text.py"]]
    ids["long call"] = s.record(
        f"long-{s.id}", "bash", "no\n", args=ARGS, args_display="ls", status="fail", file_refs=refs
    ).object
    ids |= {kind: f"{kind}:{s.id}" for kind in ("chat", "session", "system_prompt")}
    return Household(s, ids)


@pytest.mark.requirement("OBJ-1")
def test_sessions_that_read_one_canonical_path_share_one_object(start, client: SyncClient, tree: Path) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text("one\n")
    host = start()
    boxed = start(workdir="/workspace", mounts=[Mount(agent_prefix="/workspace", canonical_prefix=str(tree))])
    mine = host.read("src/a.py")
    theirs = boxed.read("/workspace/./src/../src/a.py")
    assert (mine.outcome, theirs.outcome) == ("created", "unchanged")
    assert mine.object == theirs.object
    assert set(client.object_sessions(mine.object).sessions) == {host.id, boxed.id}
    (tree / "src" / "a.py").write_text("two\n")
    assert boxed.edited("src/a.py").outcome == "updated"
    assert host.read("src/a.py").outcome == "unchanged"


@pytest.mark.requirement("OBJ-1")
def test_the_same_path_on_another_filesystem_is_another_object(start, client: SyncClient, tree: Path) -> None:
    path = str(tree / "a.py")
    (tree / "a.py").write_text("mine\n")
    mine = start().read(path)
    theirs = start(filesystem_id="another").read(path, content="theirs\n")
    assert mine.object != theirs.object
    shown = [client.object_get(id).object for id in (mine.object, theirs.object)]
    assert [version.payload["content"] for version in shown] == ["mine\n", "theirs\n"]
    assert [version.source.path for version in shown if version.source] == [path, path]


@pytest.mark.requirement("OBJ-2")
@pytest.mark.parametrize("name", ["a.py", AWKWARD, "line\nfeed\x01"])
def test_a_files_id_is_the_hash_of_its_type_and_source_binding(
    s: SyncSession, client: SyncClient, tree: Path, name: str
) -> None:
    (tree / name).write_text("x")
    source = {"type": "filesystem", "filesystemId": s.view().session.filesystem_id, "path": f"{tree}/{name}"}
    expected = hashed({"type": "file", "source": source})
    assert s.resolve(name).object == expected
    assert s.read(name).object == expected
    version = client.object_get(expected).object
    assert (version.id, version.identity_hash) == (expected, expected)


@pytest.mark.requirement("OBJ-2")
def test_a_files_id_does_not_change_with_its_content_its_deletion_or_its_return(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    ids = []
    for content in ("one", "two", None, "two"):
        if content is None:
            (tree / "a.py").unlink()
        else:
            (tree / "a.py").write_text(content)
        if ids:
            assert client.file_index(s.id, "a.py", cause="check").outcome in ("updated", "deleted")
        ids.append(s.resolve("a.py").object if ids else s.read("a.py").object)
        assert client.object_get(ids[-1]).object.identity_hash == ids[-1]
    assert set(ids) == {identity(s, "a.py")}
    assert len(client.object_history(ids[0]).versions) == 4


@pytest.mark.requirement("OBJ-3")
def test_the_identity_of_an_object_without_source_covers_its_type_and_its_id(
    household: Household, client: SyncClient
) -> None:
    for name in ("chat", "session", "system_prompt", "call", "long call"):
        version = client.object_get(household.ids[name]).object
        assert version.source is None
        assert version.identity_hash == hashed({"type": version.type, "xt/id": version.id})


@pytest.mark.requirement("OBJ-3")
@pytest.mark.parametrize("kind", ["chat", "session", "system_prompt"])
def test_no_two_sessions_share_the_identity_of_their_scaffolding(start, client: SyncClient, kind: str) -> None:
    hashes = {client.object_get(f"{kind}:{start().id}").object.identity_hash for _ in range(3)}
    assert len(hashes) == 3


@pytest.mark.requirement("OBJ-4")
@pytest.mark.requirement("OBJ-6")
def test_the_content_hash_of_every_object_is_reproducible_from_its_payload(
    household: Household, client: SyncClient
) -> None:
    for name, id in household.ids.items():
        version = client.object_get(id).object
        assert version.content_hash == content_hash(version), name
        assert "source_hash" not in version.payload
        assert "content_hash" not in version.payload


@pytest.mark.requirement("OBJ-4")
def test_inapplicable_fields_are_omitted_and_not_null(household: Household, client: SyncClient) -> None:
    fields = {name: set(client.object_get(id).object.payload) for name, id in household.ids.items()}
    file, toolcall = {"content", "file_type", "char_count"}, {"content", "tool", "args", "status", "chat_ref"}
    assert fields["text.py"] == fields["empty"] == fields["unread.md"] == file
    assert fields["binary.bin"] == file | {"kind", "encoding", "media_type", "size_bytes"}
    assert fields["large"] == file | {"kind", "size_bytes", "modified_us"}
    assert fields["gone.py"] == file | {"deleted"}
    assert fields["call"] == toolcall
    assert fields["long call"] == toolcall | {"args_display", "file_refs"}
    for name, id in household.ids.items():
        payload = client.object_get(id).object.payload
        assert [key for key, value in payload.items() if value is None and key != "content"] == [], name


@pytest.mark.requirement("OBJ-4")
def test_the_content_hash_does_not_cover_the_source_hash(s: SyncSession, client: SyncClient, tree: Path) -> None:
    versions = []
    for name, raw in (("a.bin", b"\x00one"), ("b.bin", b"\x00two")):
        (tree / name).write_bytes(raw)
        id = s.read(name).object
        # What is left of them is equal.
        client.object_purge(id)
        versions.append(client.object_get(id).object)
    one, two = versions
    assert one.source_hash != two.source_hash
    assert one.content_hash == two.content_hash


@pytest.mark.requirement("OBJ-4")
def test_each_mutable_field_changes_the_content_hash(s: SyncSession, client: SyncClient) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"content": "other"},
        {"tool": "other"},
        {"args": {"a": 1}},
        {"args_display": ""},
        {"status": "fail"},
        {"file_refs": []},
    ]
    hashes = []
    for number, variant in enumerate(variants):
        given = {"tool": "t", "content": "", **variant}
        recorded = s.record(f"{s.id}-{number}", given.pop("tool"), given.pop("content"), **given)
        hashes.append(client.object_get(recorded.object).object.content_hash)
    assert len(set(hashes)) == len(variants)


@pytest.mark.requirement("OBJ-5")
@pytest.mark.parametrize(
    "raw", [b"", b"plain\n", b"\xef\xbb\xbfwith a mark\r\n", "Größe".encode(), b"\x00\x01", b"\xff\xfe\x00not UTF-8"]
)
def test_the_source_hash_is_that_of_the_raw_bytes_whoever_read_them(
    start, s: SyncSession, client: SyncClient, tree: Path, raw: bytes
) -> None:
    expected = hashlib.sha256(raw).hexdigest()
    (tree / "a").write_bytes(raw)
    read = s.read("a")
    sent = start(filesystem_id="sandbox").read(f"{tree}/a", content=raw)
    assert read.source_hash == sent.source_hash == expected
    assert client.object_get(read.object).object.source_hash == expected


@pytest.mark.requirement("OBJ-5")
def test_unread_objects_have_no_source_hash(household: Household, client: SyncClient) -> None:
    hashes = {name: client.object_get(id).object.source_hash for name, id in household.ids.items()}
    assert {name for name, value in hashes.items() if value is not None} == {"text.py", "empty", "binary.bin"}


@pytest.mark.requirement("OBJ-6")
def test_numbers_keys_and_strings_are_hashed_in_their_canonical_form(household: Household, client: SyncClient) -> None:
    version = client.object_get(household.ids["long call"]).object
    told = {
        "tool": "bash",
        "content": "no\n",
        "args": ARGS,
        "args_display": "ls",
        "status": "fail",
        "chat_ref": f"chat:{household.session.id}",
        "file_refs": [household.ids["text.py"]],
    }
    assert version.payload == told
    assert version.content_hash == hashed(told)


@pytest.mark.requirement("OBJ-7")
@pytest.mark.parametrize("text", ["", "abc", "Größe", "\U0001f600", "e\u0301", "\U0001f468\u200d\U0001f4bb\r\n"])
def test_characters_are_counted_in_code_points(s: SyncSession, client: SyncClient, tree: Path, text: str) -> None:
    (tree / "a").write_bytes(text.encode())
    read = s.read("a")
    assert read.char_count == len(text)
    payload = client.object_get(read.object).object.payload
    assert (payload["char_count"], payload["content"]) == (len(text), text)


@pytest.mark.requirement("OBJ-7")
@pytest.mark.parametrize(
    ("name", "file_type"),
    [
        ("a.py", "py"),
        ("A.PY", "py"),
        ("archive.tar.GZ", "gz"),
        ("Makefile", "text"),
        (".bashrc", "text"),
        ("v1.2/README", "text"),
        (".config.json", "json"),
    ],
)
def test_a_files_type_is_its_lower_case_extension(
    s: SyncSession, client: SyncClient, tree: Path, name: str, file_type: str
) -> None:
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("x")
    assert client.object_get(s.read(name).object).object.payload["file_type"] == file_type


@pytest.mark.requirement("OBJ-11")
def test_scaffolding_reads_as_objects_now_and_as_of_any_time(start, client: SyncClient, tree: Path) -> None:
    s = start(system_prompt="First.")
    (tree / "a.py").write_text("x")
    begun = s.user("Hello.").receipt
    file = s.read("a.py")
    changed = s.set_system_prompt("Second.").receipt
    s.user("Again.")
    assert begun and changed and file.receipt

    def payload(kind: str, **basis: int) -> dict[str, Any]:
        return client.object_get(f"{kind}:{s.id}", **basis).object.payload

    assert payload("system_prompt")["content"] == "Second."
    assert payload("system_prompt", tx=changed.seq - 1)["content"] == "First."
    assert payload("system_prompt", valid_time=changed.vt)["content"] == "Second."
    assert payload("chat")["turn_count"] == 2
    assert payload("chat", tx=begun.seq)["turns"] == [
        {"number": 1, "messages": [{"role": "user", "content": "Hello."}]}
    ]
    assert payload("chat", tx=begun.seq - 1)["turns"] == []
    assert payload("chat", valid_time=begun.vt)["turn_count"] == 1
    assert payload("session")["session_index"] == [file.object]
    assert payload("session", tx=begun.seq)["session_index"] == []
    assert payload("session", valid_time=file.receipt.vt)["active_set"] == [file.object]
    refs = {"chat_ref": f"chat:{s.id}", "system_prompt_ref": f"system_prompt:{s.id}"}
    assert payload("session").items() >= refs.items()
    for kind in ("chat", "session", "system_prompt"):
        version = client.object_get(f"{kind}:{s.id}").object
        assert (version.type, version.state) == (kind, "present")
        rows = client.object_history(version.id).versions
        assert len(rows) >= 2
        assert (rows[-1].tx, rows[-1].valid_time) == (version.tx, version.valid_time)


@pytest.mark.requirement("OBJ-11")
@pytest.mark.parametrize("kind", ["chat", "session", "system_prompt"])
@pytest.mark.parametrize("move", ["activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove"])
def test_scaffolding_is_never_activated_pinned_or_pooled(s: SyncSession, kind: str, move: str) -> None:
    before = s.view()
    with refused("infrastructure_object"):
        getattr(s, move)(f"{kind}:{s.id}")
    assert s.view() == before


@pytest.mark.requirement("OBJ-11")
def test_scaffolding_is_in_no_set_and_in_no_sessions_listing(household: Household, client: SyncClient) -> None:
    view = household.session.view().session
    scaffolding = {view.chat_ref, view.system_prompt_ref, f"session:{view.session}"}
    for ids in (view.session_index, view.metadata_pool, view.active_set, view.pinned_set):
        assert not scaffolding & set(ids)
    listed = client.object_list(session=view.session).objects
    assert {row.object for row in listed} == set(view.session_index)


@pytest.mark.requirement("OBJ-13")
def test_chats_are_listed(s: SyncSession, start, client: SyncClient) -> None:
    other = start()
    assert [row.object for row in client.object_list(session=s.id, type="chat").objects] == [f"chat:{s.id}"]
    assert [row.object for row in client.object_list(session=s.id, type="session").objects] == [f"session:{s.id}"]
    prompts = client.object_list(session=s.id, type="system_prompt").objects
    assert [row.object for row in prompts] == [f"system_prompt:{s.id}"]
    found: list[str] = []
    cursor = None
    while True:
        page = client.object_list(type="chat", limit=2, cursor=cursor)
        found += [row.object for row in page.objects]
        assert all(row.type == "chat" for row in page.objects)
        if (cursor := page.next_cursor) is None:
            break
    assert found == sorted(set(found))
    assert {f"chat:{s.id}", f"chat:{other.id}"} <= set(found)
    every: list[str] = []
    cursor = None
    while True:
        page = client.object_list(limit=50, cursor=cursor)
        every += [row.object for row in page.objects]
        if (cursor := page.next_cursor) is None:
            break
    assert every == sorted(set(every))
    assert set(found) <= set(every)
