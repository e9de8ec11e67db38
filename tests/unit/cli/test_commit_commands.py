"""Commands on context commits, against a real daemon."""

import json
import time

import cbor2
import pytest

from ctxd.cli.commit_lookup import instant
from ctxd.clock import SystemClock
from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient
from tests.unit.cli.commit_lines import AT, LINES, line


@pytest.mark.requirement("CMT-17")
def test_the_log_shows_a_chain_or_all_branches(real, chain):
    one, two, three, side = chain
    assert real("log", "-q").out.split() == [three, two, one]
    assert real("log", side, "-q").out.split() == [side, one]
    page = real("log", "--limit", "2", "--json").json
    assert [each["commit"] for each in page["items"]] == [three, two]
    assert real("log", "--cursor", page["next_cursor"], "-q").out.split() == [one]
    shown = real("log").out.splitlines()
    assert shown[0].startswith(three)
    assert shown[0].endswith("learned three")
    graph = real("log", "--graph").out.splitlines()
    assert [text.split()[0] for text in graph] == ["*", "*", "|", "|/", "*"]
    assert [text.split(" ")[0] for text in graph[:2]] == ["*", "*"]
    assert side in graph[2]
    assert real("log", "--no-summary", "-q").out.split() == [side]
    assert real("log", one, "--graph").code == 2
    for command in ("log", "branch"):
        refused = real(command, "--all", "-s", "any")
        assert refused.code == 2 and "--all and --session exclude each other" in refused.err
    assert real("branch", "-q").out.split() == [three, side]
    assert real("branch").out.splitlines()[0].endswith("(3 commits)")


@pytest.mark.requirement("CMT-17")
def test_commits_without_a_summary_are_listed_by_how_their_conversation_begins(real, own):
    client = own.client
    reply = {"type": "assistant", "message": {"content": [{"type": "text", "text": "a reply\nof two lines"}]}}
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    deltas = {
        "a prompt": json.dumps(reply) + "\n" + line("\n a prompt \nand more"),
        "a reply": json.dumps(reply) + "\n",
        'Bash {"command":"ls"}': json.dumps({"type": "assistant", "message": {"content": [call]}}) + "\n",
        "p" * 90 + "…": line("p" * 91),
        "escape \\x1b[2J": line("escape \x1b[2J"),
        "": json.dumps({"type": "mode", "mode": "x"}) + "\n",
    }
    made = {
        client.commit_checkpoint(LINES, delta, session=own.id, thread_id="agent-7").commit.commit: text
        for text, delta in deltas.items()
    }
    purged = client.commit_checkpoint(LINES, line("gone"), session=own.id).commit.commit
    client.commit_discard([purged])
    other = client.commit_checkpoint("own-v1", "any text", session=own.id).commit.commit
    told = client.commit_checkpoint(LINES, line("left out"), session=own.id, summary="a summary").commit.commit
    own.user("a turn of its own")
    current = client.context_current(session=own.id).context_id
    shown = {row.split()[0]: row for row in real("log", "--all").out.splitlines()}
    for commit, text in made.items():
        assert shown[commit].partition("Z  (root, thread: agent-7)  ")[2].rpartition("[")[0].rstrip() == text
    assert shown[current].endswith("  a turn of its own [tool_call, 1 message]")
    for commit in (purged, other):
        assert shown[commit].partition("Z  (root)  ")[2].startswith("[explicit, ")
    assert shown[told].endswith("  a summary")
    assert all("a turn of its own [" in real(*words).out for words in (("branch",), ("log", "--graph")))


@pytest.mark.requirement("CLI-10")
@pytest.mark.parametrize("words", ["log", "log --graph", "branch", "show", "tag t", "annotate -m m", "checkpoint"])
def test_several_open_sessions_have_no_newest_commit(real, own, tmp_path, monkeypatch, words):
    other = own.client.session(agent="demo")
    own.client.commit_checkpoint(LINES, line("one"), session=other.id)
    (tmp_path / "delta").write_text(line("two"))
    given = ["--format", LINES, str(tmp_path / "delta")] if words == "checkpoint" else []
    monkeypatch.delenv("CTXD_SESSION")
    refused = real(*words.split(), *given)
    assert (refused.code, refused.out) == (2, "")
    assert "several sessions are open: " in refused.err and "export CTXD_SESSION=" in refused.err
    assert real(*words.split(), *given, "-s", other.id).code == 0


@pytest.mark.requirement("CMT-17")
def test_the_graph_of_a_fork_includes_the_chain_it_continues(real, own):
    client = own.client
    tips = []
    for n in range(5):
        own.user(f"turn {n}")
        tips.append(client.context_current(session=own.id).context_id)
    fork = client.session(client.session_fork(own.id, commit=tips[2]).session)
    inherited = tips[2::-1]
    assert real("log", "--graph", "-s", fork.id, "-q").out.split() == inherited, "it has no commit of its own"
    fork.user("another way")
    first = client.context_current(session=fork.id).context_id
    side = client.commit_checkpoint(LINES, line("side"), session=fork.id, parent=first).commit.commit
    whole = [side, first, *inherited]
    assert real("log", "--graph", "-s", fork.id, "-q").out.split() == whole
    drawing = [row.split()[0] for row in real("log", "--graph", "-s", fork.id).out.splitlines()]
    assert drawing == ["*"] * 5
    for limit in (1, 2, 3):
        pages, cursor = [], None
        while True:
            words = () if cursor is None else ("--cursor", cursor)
            page = real("log", "--graph", "-s", fork.id, "--limit", str(limit), "--json", *words).json
            assert 0 < len(page["items"]) <= limit
            pages += [each["commit"] for each in page["items"]]
            if (cursor := page.get("next_cursor")) is None:
                break
        assert pages == whole, limit
    assert real("log", "--graph", "-q").out.split() == tips[::-1]


@pytest.mark.requirement("CMT-17")
def test_a_commit_is_named_by_id_head_tag_session_and_time(real, own, chain):
    one, two, three, side = chain
    principal = real("show", one, "--json").json["commit"]["principal"]

    def named(text):
        return real("show", text, "--json").json["commit"]["commit"]

    assert real("tag", "good", "HEAD~1").code == 0
    for text, commit in (
        ("HEAD", three),
        ("HEAD~", two),
        ("HEAD~2", one),
        ("good", two),
        ("good~1", one),
        (own.id, three),
        (f"{own.id}@", three),
        (f"{own.id}~1", two),
        (f"{own.id}@{{{instant(AT + 30_000)}}}", side),
        (f"{principal}@{instant(AT)}", one),
    ):
        assert named(text) == commit, text
    assert real("resolve", f"{principal}@{{{instant(AT + 60_000)}}}").out.strip() == two
    for words, code in (
        (("show", "nothing"), 3),
        (("show", "HEAD~9"), 3),
        (("show", "ctx-00000000"), 3),
        (("show", f"{own.id}@{{soon}}"), 2),
        (("resolve", principal), 2),
        (("resolve", f"{principal}@1999-01-01"), 3),
    ):
        ran = real(*words)
        assert ran.code == code, words
        assert "; " in ran.err, words


@pytest.mark.requirement("SES-43")
def test_a_fork_begins_at_a_commit_in_each_of_its_names(real, own, chain):
    one, two, three, _ = chain
    assert real("tag", "good", two).code == 0
    for name, commit in (("HEAD~2", one), ("HEAD~", two), ("HEAD", three), ("good", two), (f"{three}~1", two)):
        fork = real("fork", name, "--json")
        assert fork.code == 0, (name, fork.err)
        made = own.client.commit_resolve(session=fork.json["session"]).commit
        assert made.commit == commit, name
    for name, code in (("HEAD~9", 3), ("~~", 3), ("no such thing", 3), ("", 2)):
        ran = real("fork", name)
        assert (ran.code, "regex" in ran.err) == (code, False), (name, ran.err)


@pytest.mark.requirement("CMT-17")
@pytest.mark.parametrize("words", [("annotate", "-m", "x"), ("tag", "t"), ("show",), ("log",), ("diff",)])
def test_an_empty_name_is_not_the_newest_commit(real, chain, words):
    """The name may come from a variable of a script that is not set."""
    ran = real(*words, "")
    assert (ran.code, "the name of the commit is empty" in ran.err) == (2, True)


@pytest.mark.requirement("CMT-17")
def test_a_commit_is_shown_with_its_messages(real, chain):
    one, two, three, side = chain
    told = real("show", one).out
    for text in (f"commit {one}", "learned one", f"child:     {two}", f"child:     {side}", LINES):
        assert text in told
    assert "two" not in told
    assert "\n\n## User\n\none\n" in told and "earlier session" not in told
    assert "earlier session" in real("context", "--commit", one).out
    assert "one" not in real("show", one, "--no-content").out.replace("learned one", "").replace("none", "")
    assert real("annotate", "-m", "better", one).out.strip().endswith("better")
    assert real("show", one, "--json").json["commit"]["summary"] == "better"


@pytest.mark.requirement("CMT-17")
def test_a_context_is_printed_compared_and_written_to_a_file(real, own, chain, tmp_path):
    one, two, three, side = chain
    assert real("materialize").out == line("one") + line("two") + line("three")
    assert real("materialize", "HEAD~1", "--stop", two).out == line("two")
    made = real("materialize", "--counts", "--json").json
    assert (made["commit_count"], made["message_count"], made["content"]) == (3, 3, None)
    target = tmp_path / "context.jsonl"
    ran = real("materialize", "-o", str(target))
    assert target.read_text() == line("one") + line("two") + line("three")
    assert "3 commits back to" in ran.err
    (tmp_path / "e").write_bytes(
        cbor2.dumps([{"type": "prompt", "prompt": {"content": "hi", "source": "user"}, "timestamp": 1}])
    )
    real("checkpoint", "--format", "events-v1", "--root", str(tmp_path / "e"))
    assert "hi" in real("materialize", "--format", "narrative-v1").out
    assert real("materialize", "-o", str(target)).code == 0
    assert target.read_bytes() == (tmp_path / "e").read_bytes()
    assert "+two" in real("diff", one, two).out
    assert real("diff", one, one).err == "no difference\n"


@pytest.mark.requirement("CMT-17")
def test_long_contexts_are_read_with_progress_on_a_terminal(real, own, tmp_path, monkeypatch):
    file = tmp_path / "delta"
    for text in ("word " * 1_000_000, "one more"):
        file.write_text(line(text))
        assert real("checkpoint", "--format", LINES, str(file)).code == 0
    for words in (("diff", "HEAD~1"), ("materialize", "-o", str(tmp_path / "back"))):
        assert "bytes" not in real(*words).err, "not on a pipe"
        with monkeypatch.context() as patched:
            patched.setattr("sys.stderr.isatty", lambda: True)
            ran = real(*words)
        steps = [part.split(" bytes")[0] for part in ran.err.split("\r")[1:]]
        done = [[int(number.replace(",", "")) for number in step.split(" of ")] for step in steps]
        assert ran.code == 0 and len(done) >= 2, ran.err
        assert all(one[0] < two[0] for one, two in zip(done, done[1:], strict=False) if one[1] == two[1])
        assert done[-1][0] == done[-1][1] > 5_000_000
    assert "one more" in real("diff", "HEAD~1").out


@pytest.mark.requirement("CMT-9")
def test_a_tag_moves_only_with_force(real, chain):
    one, two, three, side = chain
    assert real("tag", "good", one).code == 0
    taken = real("tag", "good", two)
    assert (taken.code, taken.err) == (4, f"ctx: tag good is on {one}; -f moves it\n")
    again = real("tag", "good", one)
    assert (again.code, "tag: good" in again.out, again.err) == (0, True, ""), "nothing has to move"
    assert real("tag", "-f", "good", two).code == 0
    assert "tag: good" in real("log").out.splitlines()[1]
    other = real("tag", "-d", "good", one)
    assert (other.code, other.err.startswith(f"ctx: tag good is on {two}, not on {one}; ")) == (4, True)
    assert real("tag", "-d", "good", one, "--json").code == 4
    assert "tag: good" in real("log").out
    assert real("tag", "-d", "good").code == 0
    assert "tag: good" not in real("log").out


@pytest.mark.requirement("CMT-9")
def test_a_tag_is_removed_by_its_name_even_if_the_name_has_another_meaning(real, own, chain, monkeypatch):
    one, _, three, _ = chain
    for name in ("HEAD", one, own.id):
        missing = real("tag", "-d", name)
        assert missing.code == 3
        assert missing.err == f"ctx: no commit has the tag '{name}'; ctx log --all lists commits with their tags\n"
    for name in ("HEAD", one):
        refused = real("tag", name, three)
        assert refused.code == 2 and f"{name} cannot be a tag" in refused.err and "another name" in refused.err
    # An earlier version accepted such names.
    assert real("tag", "good", one).code == 0
    for method in ("commit_list", "commit_tag"):
        whole = getattr(SyncClient, method)

        def renamed(self, *rest, whole=whole, **named):
            rest = tuple("good" if each == "HEAD" else each for each in rest)
            return whole(self, *rest, **{key: "good" if each == "HEAD" else each for key, each in named.items()})

        monkeypatch.setattr(SyncClient, method, renamed)
    removed = real("tag", "-d", "HEAD")
    assert removed.code == 0 and one in removed.out
    assert "tag: good" not in real("log").out


@pytest.mark.requirement("CMT-17")
@pytest.mark.parametrize(
    ("words", "member"),
    [
        (("log",), "items"),
        (("log", "--graph"), "items"),
        (("show",), "commit"),
        (("diff", "HEAD~1"), "diff"),
        (("checkpoint", "--format", LINES, "FILE"), "commit"),
        (("branch",), "items"),
        (("fork", "HEAD~1"), "session"),
        (("resume", "PRINCIPAL"), "session"),
        (("materialize",), "content"),
        (("materialize", "--counts"), "message_count"),
        (("resolve", "@now"), "commit"),
        (("tag", "-f", "good"), "tags"),
        (("annotate", "-m", "known"), "summary"),
    ],
)
def test_each_command_on_commits_writes_one_document_or_one_error_as_json(real, own, chain, tmp_path, words, member):
    file = tmp_path / "delta"
    file.write_text(line("more"))
    names = {"FILE": str(file), "PRINCIPAL": own.view().session.principal}
    words = [names.get(word, word) for word in words]
    done = real(*words, "--json")
    assert (done.code, done.err) == (0, "")
    assert member in done.json
    assert real(*words).out, "also as text"
    wrong = [
        word.replace("HEAD~1", "none").replace("@now", "nobody@now").replace(str(file), "/no/file") for word in words
    ]
    if words[0] == "resume":
        wrong.append("nobody")
    if wrong == words:
        wrong += ["-s", "no such session"]
    failed = real(*wrong, "--json")
    assert failed.code in (2, 3)
    assert json.loads(failed.out or failed.err)["error"]["exit"] == failed.code


@pytest.mark.requirement("CMT-21")
def test_every_command_takes_the_id_of_a_commit_or_of_an_assembly(real, own, running, tmp_path):
    client = own.client
    own.user("Why does it fail?")
    assembled = own.assemble()
    commit = client.context_current(session=own.id).context_id
    assert client.commit_show(commit).commit.session == own.id
    own.user("And now?")
    later = own.assemble()
    (shown, context) = (real("show", commit), real("context", "--commit", "HEAD~0"))
    assert shown.out.startswith(f"commit {commit}\n")
    assert "Why does it fail?" in shown.out
    assert "Why does it fail?" in context.out
    assert real("context", commit).out == context.out
    assert real("context", commit, "--text").out == assembled.text
    assert real("context", "--commit", commit, "--json").json["commit"] == commit
    whole = real("show", later.context_id)
    assert whole.out.startswith(f"assembly {later.context_id}\n")
    assert whole.out.endswith(later.text)
    assert real("show", later.context_id, "--json").json["number"] == later.number
    assert real("context", assembled.context_id, "--text").out == assembled.text
    assert real("log", later.context_id, "-q").out.split() == [commit], "the newest commit before it"
    for words in (
        ("log", commit),
        ("materialize", commit, "--counts"),
        ("diff", commit, commit),
        ("session", "show", commit),
    ):
        assert real(*words).code == 0, words
    early = real("log", assembled.context_id)
    assert (early.code, "no commit then" in early.err) == (3, True)
    for words in (("show", "ctx-00000000"), ("context", "ctx-00000000"), ("context", "--commit", "ctx-00000000")):
        assert real(*words).code == 3, words
    assert real("context", "--commit", commit, "--text").code == 2


@pytest.mark.requirement("CMT-21")
def test_the_commit_before_an_assembly_is_the_one_the_journal_has_before_it(real, own):
    """Neither an imported commit with an earlier time that was made later, nor one of the same millisecond."""
    client = own.client
    own.user("first")
    before = client.context_current(session=own.id).context_id
    assembled = own.assemble()
    given = {"session": own.id, "parent": before}
    while SystemClock().wall_ms() <= assembled.assembled_at:
        time.sleep(0.001)
    client.commit_checkpoint(LINES, line("later"), valid_time=assembled.assembled_at, **given)
    own.user("second")
    after = client.context_current(session=own.id).context_id
    assert after != before
    assert real("log", assembled.context_id, "-q").out.split() == [before]
    assert client.commit_resolve(session=own.id, assembly=assembled.number).commit.commit == before
    fork = client.session_fork(own.id).session
    assert client.commit_resolve(session=fork, assembly=assembled.number).commit.commit == before, "it shares it"
    for params, code in (
        ({"session": own.id, "assembly": 9}, "assembly_not_found"),
        ({"assembly": 1}, "invalid_params"),
    ):
        with pytest.raises(CallFailed) as failed:
            client.commit_resolve(**params)
        assert failed.value.code == code


@pytest.mark.requirement("CMT-22")
def test_a_long_delta_is_sent_in_pieces_and_leaves_no_secret_behind(real, own, tmp_path):
    file = tmp_path / "delta"
    file.write_text(line("word " * 2_000_000))
    made = real("checkpoint", "--format", LINES, "--json", str(file)).json
    assert made["message_count"] == 1
    assert real("materialize", "-o", str(tmp_path / "back")).code == 0
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    hidden = own.client.session_create("demo", secrets="redact").session.session
    file.write_text(line("the key is AKIAIOSFODNN7EXAMPLQ " + "word " * 400_000))
    made = real("checkpoint", "-s", hidden, "--format", LINES, "--json", str(file)).json
    raw = [each.artifact for each in own.client.artifact_list().artifacts if each.artifact != made["artifact_ref"]]
    assert all(own.client.artifact_stat(each).references for each in raw), "the one with the secret is gone"
    assert real("checkpoint", "--format", LINES, str(tmp_path / "none")).code == 2


@pytest.mark.requirement("CMT-19")
def test_purges_name_commits_and_artifacts_and_do_not_hide_the_commits_beside_a_chat(real, own):
    client, chain = own.client, []
    for number in range(4):
        made = client.commit_checkpoint(LINES, line(f"{number} of {own.id}"), session=own.id, parent=None)
        chain.append(made.commit.commit)
    own.user("in the chat")
    done = real("purge", f"chat:{own.id}", "--yes")
    assert "nothing of the chat is left; 4 commits of its session have other texts" in done.out
    assert f"ctx purge chat:{own.id} --commits erases them too" in done.err
    one = real("purge", chain[0], "--yes", "--json").json
    assert (one["objects"], one["complete"]) == ([f"commit:{chain[0]}"], True)
    assert real("purge", f"commit:{chain[1]}", "--yes").out.splitlines()[-1].startswith("no version of it is left; ")
    done = real("purge", f"chat:{own.id}", "--commits", "--yes", "--json").json
    assert set(done["objects"]) >= {f"commit:{chain[2]}", f"commit:{chain[3]}"}
    for commit in chain:
        assert client.commit_show(commit).commit.artifact_ref is None
        assert "was purged" in real("materialize", commit).err
        shown = real("show", commit)
        assert (shown.code, shown.err) == (0, "") and "artifact:  purged\n" in shown.out
    assert real("purge", f"chat:{own.id}", "--yes").out.splitlines()[-1].startswith("no version of it is left; ")
    put = client.artifact_put(data=b"to be purged")
    assert real("purge", f"artifact:{put.artifact[:12]}", "--yes").code == 0
    with pytest.raises(CallFailed):
        client.artifact_get(put.artifact)
    assert real("purge", "ctx-00000000", "--yes").code == 3
    assert real("purge", chain[0], "--commits", "--yes").code == 2


@pytest.mark.requirement("CMT-19")
def test_the_remedies_for_a_chain_with_a_purged_commit_lead_to_a_session_of_a_harness(
    real, chain, tmp_path, monkeypatch
):
    one, two, three, _ = chain
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    into_claude = ("--in", "claude", "--cwd", str(tmp_path))
    assert real("purge", two, "--yes").code == 0
    refused = real("fork", three, *into_claude)
    assert refused.code == 1
    start = f"start from its parent {one}, or continue from a later compaction, which ctx checkpoint makes"
    rest = f"ctx materialize can also stop at a later commit, and ctx show {two} has what is left of it"
    assert refused.err == f"ctx: the content of commit {two} was purged; {start}; {rest}\n"
    assert real("fork", one, *into_claude).code == 0
    assert real("materialize", three, "--stop", three).code == 0
    (tmp_path / "summary").write_text(line("a summary"))
    words = ("--format", LINES, "--parent", three, "--type", "compaction", str(tmp_path / "summary"))
    compaction = real("checkpoint", *words).out.strip()
    assert real("fork", compaction, *into_claude).code == 0
    assert real("purge", one, "--yes").code == 0
    assert "was purged; continue from a later compaction" in real("fork", one, *into_claude).err


def test_a_format_that_is_not_known_or_not_written_is_named(real, own, chain, tmp_path):
    made = real("materialize", "--format", "codex-v1", "-o", str(tmp_path / "context"))
    assert "cannot be written as codex-v1; the output is narrative-v1" in made.err
    (tmp_path / "delta").write_text("anything")
    kept = real("checkpoint", "--format", "nosuch", "--root", str(tmp_path / "delta"))
    assert kept.code == 0
    assert "unknown format nosuch" in kept.err


def test_invalid_tags_artifacts_and_principals_are_rejected_with_a_remedy(real, own, chain, tmp_path):
    assert "a tag begins with a letter or digit;" in real("tag", "bad name").err
    other = own.client.session(agent="demo")
    for session in (own.id, other.id):
        (tmp_path / "delta").write_text(line(session))
        assert real("checkpoint", "--format", LINES, "-s", session, str(tmp_path / "delta")).code == 0
        assert real("tag", "twice", "HEAD", "-s", session).code == 0
    third = own.client.session(agent="demo")
    several = real("show", "twice", "-s", third.id)
    assert (several.code, f"of {own.id}" in several.err, f"of {other.id}" in several.err) == (4, True, True)
    missing = real("artifact", "put", str(tmp_path / "none"))
    assert (missing.code, missing.out) == (2, "")
    assert "cannot be read: No such file or directory" in missing.err
    assert "has fewer than 4 characters" in real("artifact", "get", "974").err
    assert "`limit` is greater than 100" in real("rpc", "search.query", '{"query": "a", "limit": 1000}').err
    assert f"ctx fork {chain[0]} starts a session from it" in real("resume", chain[0]).err


def test_the_chat_of_a_session_with_commits_alone_is_that_of_the_newest(real, own, chain):
    shown = real("session", "chat", own.id)
    assert shown.out.endswith("turn 3, 0: prompt\n    three\n")
    assert shown.err == f"the conversation of commit {chain[2]}, as the session has no events of its own:\n"
    removed = real("session", "rm", own.id)
    assert (removed.out, "ctx session restore" in removed.err) == (f"{own.id} is removed\n", True)


def test_sessions_and_principals_that_a_command_does_not_take_are_refused_with_the_one_that_does(real, own, chain):
    taken = real("resume", own.id)
    assert (taken.code, f"ctx fork {own.id} starts a session from it" in taken.err) == (3, True)
    moment = real("resume", f"{own.id}@1")
    assert (moment.code, f"{own.id}@1 is a moment of a session" in moment.err) == (3, True)
    assert f"ctx fork {own.id}@1 starts a session from it" in moment.err
    own.client.session_pause(own.id)
    seen = real("context", own.id)
    assert (seen.code, seen.out) == (0, real("context", chain[2]).out)
    assert chain[2] in real("log", own.id[:-1]).out
    assert real("session", "label", own.id, "=x").err.startswith("ctx: '=x' has no key")
    labelled = own.client.session_create("claude-code", labels={"harness": "claude-code"}).session.session
    assert labelled in real("session", "ls", "--harness", "claude", "-q").out.split()
    assert real("session", "ls", "-q", "--json").json["items"]


def test_the_context_of_a_session_with_only_commits_is_that_of_the_newest_one(real, own, chain):
    ran = real("show", f"{own.id}@2")
    assert "has no turn 2; it has no turns" in ran.err and "`ctx log` lists" in ran.err
    ran = real("context", own.id)
    assert ran.out == real("context", chain[2]).out
    first, second = ran.err.splitlines()
    assert first == f"session {own.id} has assembled no context; this is the one of its newest commit"
    assert second.startswith(f"{chain[2]}, 3 commits ")
    empty = own.client.session_create("claude-code").session.session
    assert real("context", empty).out.splitlines()[0] == f"{empty}  turn 0  next text  0 tokens  0 B"
    own.client.session_pause(empty)
    refused = real("context", empty)
    assert (refused.code, refused.out) == (3, "")
    assert f"has no context and no commit; ctx session resume {empty} makes it active again" in refused.err


def test_times_turns_and_tiers_are_written_as_elsewhere(real, own, chain):
    missing = real("resolve", "@1999-01-01T00:00Z").err
    assert missing.startswith("ctx: you have no commit at or before 1999-01-01 00:00:00.000Z; ")
    principal = real("show", "--json").json["commit"]["principal"]
    assert (
        f"{principal} has no commit at or before 1999-01-01 00:00:00.000Z; "
        in real("show", f"{principal}@1999-01-01T00:00Z").err
    )
    assert real("materialize", "--counts").out.rstrip().endswith(" of claude-code-v1, tier: native")
    own.user("one")
    own.user("two")
    ran = real("session", "chat", "@~3")
    assert (ran.code, ran.err) == (
        3,
        f"ctx: session {own.id} begins less than 3 turns before turn 2; its turns are 0 to 2\n",
    )
    assert "has no turn 5; its turns are 0 to 2" in real("session", "chat", "@5").err


@pytest.mark.parametrize("words", [("log",), ("show", "HEAD~1"), ("log", "-s", "{s}")])
def test_the_default_session_without_a_commit_is_named_in_the_remedy(real, own, words):
    ran = real(*(word.format(s=own.id) for word in words))
    assert (ran.code, ran.err) == (
        3,
        f"ctx: session {own.id} has no commit yet, and no event to commit; "
        "it can be committed once it has a message; ctx checkpoint commits a delta from a file\n",
    )
    own.user("one")
    named = real(*(word.format(s=own.id) for word in words))
    assert named.err == f"ctx: session {own.id} has no commit yet; ctx current -s {own.id} creates one\n"
    own.client.context_current(session=own.id)
    assert f"session {own.id} has no commit yet" not in real(*(word.format(s=own.id) for word in words)).err


@pytest.mark.requirement("CMT-9")
def test_a_tag_of_another_session_is_not_removed(real, own, chain):
    other = own.client.session(agent="demo")
    assert real("tag", "good", chain[0]).code == 0
    ran = real("tag", "-d", "good", "-s", other.id)
    assert (ran.code, ran.out) == (3, "")
    assert (
        ran.err
        == f"ctx: no commit of session {other.id} has the tag 'good'; ctx log --all lists commits with their tags\n"
    )
    assert "tag: good" in real("log").out
    assert real("tag", "--remove", "good", "-s", own.id).code == 0
    assert "tag: good" not in real("log").out
