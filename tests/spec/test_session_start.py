"""SES: sessions that start from a template and a context: empty, a moment, a commit, or a principal's newest one."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import SyncClient, SyncSession, connect_sync
from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.methods.commits import StartContext
from ctxd_protocol.session_types import RecordedSession
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import BOX, inside
from tests.spec.sessions import call, said, sets
from tests.spec.test_commands import ctx
from tests.waiting import block_until

PROMPT = '{"type":"user","uuid":"u1","message":{"role":"user","content":"Why does the test fail?"}}\n'
ANSWER = '{"type":"assistant","uuid":"a1","message":{"role":"assistant","content":[{"type":"text","text":"A tab."}]}}\n'
ASKED = [(1, [("user", "Why does the test fail?"), ("assistant", "A tab.")])]


def started(client: SyncClient, agent: str | None = None, **given: Any) -> SyncSession:
    """A session that starts from the context with the fields ``given``."""
    made = client.session_create(agent, context=StartContext(**given)).session
    return client.session(made.session)


def tip(client: SyncClient, session: str) -> str:
    found = client.context_current(session=session).context_id
    assert found is not None
    return found


def story(client: SyncClient, commit: str) -> str:
    """The context of ``commit`` from its root on, as text."""
    return client.commit_materialize(commit, stop="root", format="narrative-v1").content or ""


@pytest.mark.requirement("SES-40")
def test_a_session_that_starts_from_a_commit_of_a_session_is_that_session_at_the_commit(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    s.set_system_prompt("Be brief.")
    s.user("Begin.")
    call(s)
    commit = tip(client, s.id)
    before = sets(s), said(s)
    s.user("Not in the other.")
    other = started(client, commit=commit)
    assert (sets(other), said(other)) == before
    view = other.view().session
    assert (view.agent, view.workdir) == (s.view().session.agent, s.view().session.workdir)
    assert tip(client, other.id) == commit, "the chain goes on there"
    other.user("Only in the other.")
    own = client.commit_show(tip(client, other.id)).commit
    assert (own.parent, own.session) == (commit, other.id)
    assert "Not in the other." not in story(client, own.commit)
    assert "Only in the other." not in story(client, tip(client, s.id))


@pytest.mark.requirement("SES-40")
def test_settings_that_are_given_replace_those_of_the_context(s: SyncSession, client: SyncClient, tree: Path) -> None:
    s.set_system_prompt("Be brief.")
    s.user("Begin.")
    commit = tip(client, s.id)
    made = client.session_create(
        "reviewer", system_prompt="Review it.", workdir=str(tree), labels={"k": "v"}, budget_tokens=9_000,
        context=StartContext(commit=commit), checkpoint="turn",
    ).session  # fmt: skip
    assert (made.agent, made.workdir, made.labels, made.budget_tokens) == ("reviewer", str(tree), {"k": "v"}, 9_000)
    assert made.checkpoint == "turn"
    assert client.object_get(f"system_prompt:{made.session}").object.payload["content"] == "Review it."
    assert client.object_get(f"system_prompt:{s.id}").object.payload["content"] == "Be brief."
    plain = client.session_get(started(client, session=made.session).id).session
    same = ("agent", "workdir", "labels", "budget_tokens", "checkpoint")
    assert [getattr(plain, name) for name in same] == [getattr(made, name) for name in same]


@pytest.mark.requirement("SES-45")
@pytest.mark.parametrize("begins", ["empty", "fork", "captured"])
def test_a_session_is_paused_and_archived_in_its_one_write(s: SyncSession, client: SyncClient, begins: str) -> None:
    s.user("Begin.")
    context = None
    if begins == "fork":
        context = StartContext(session=s.id)
    elif begins == "captured":
        context = StartContext(commit=client.commit_checkpoint("claude-code-v1", PROMPT).commit.commit)
    made = client.session_create("demo", context=context, state="paused", archived=True)
    assert (made.session.state, made.session.archived) == ("paused", True)
    with refused("session_not_active"):
        client.session(made.session.session).user("More.")
    assert made.receipt is not None
    versions = client.object_history(f"session:{made.session.session}").versions
    assert [version.tx for version in versions] == [made.receipt.seq]
    assert made.session.session in [row.session for row in client.session_list(archived=True, limit=1000).sessions]


@pytest.mark.requirement("SES-45")
def test_sessions_continued_from_an_archived_session_are_active_and_listed(s: SyncSession, client: SyncClient) -> None:
    s.user("Begin.")
    commit = tip(client, s.id)
    s.pause()
    client.session_annotate(s.id, archived=True)
    forks = [client.session_fork(s.id).session, started(client, session=s.id).id, started(client, commit=commit).id]
    listed = {row.session: row.state for row in client.session_list(limit=1000).sessions}
    assert [listed.get(fork) for fork in forks] == ["active"] * 3 and s.id not in listed


@pytest.mark.requirement("SES-40")
def test_a_session_starts_from_a_revision_of_another_or_empty(s: SyncSession, client: SyncClient) -> None:
    s.user("One.")
    tx = client.session_append(s.id, events=[ResponseEvent(text="Yes.")]).receipt
    assert tx is not None
    s.user("Two.")
    assert said(started(client, session=s.id, tx=tx.seq)) == [(1, [("user", "One."), ("assistant", "Yes.")])]
    assert len(said(started(client, session=s.id))) == 2
    fresh = client.session_create("demo").session
    assert fresh.turn_count == 0 and client.context_current(session=fresh.session).context_id is None
    with refused("invalid_params"):
        client.session_create()
    with refused("invalid_params"):
        started(client, session=s.id, commit="ctx-00000000")
    with refused("invalid_params"):
        started(client)
    with refused("invalid_params"):
        started(client, commit="ctx-00000000", tx=1)
    with refused("commit_not_found"):
        started(client, commit="ctx-00000000")
    with refused("session_not_found"):
        started(client, session="nobody")
    with refused("commit_not_found"):
        started(client, principal="nobody")


@pytest.mark.requirement("SES-41")
def test_a_captured_commit_of_no_session_becomes_the_chat_of_the_session_that_starts_there(
    kept: Running, tree: Path
) -> None:
    with connect_sync(kept.socket) as client:
        root = client.commit_checkpoint("claude-code-v1", PROMPT, template="coder").commit.commit
        commit = client.commit_checkpoint("claude-code-v1", ANSWER, parent=root, template="coder").commit.commit
        s = started(client, commit=commit)
        assert s.view().session.agent == "coder"
        assert (s.view().session.turn_count, said(s)) == (1, ASKED)
        assert tip(client, s.id) == commit, "nothing is new"
        again = started(client, "other", commit=root)
        assert again.view().session.agent == "other" and len(said(again)[0][1]) == 1
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        s = client.session(s.id)
        assert said(s) == ASKED
        s.user("Mend it.")
        own = client.commit_show(tip(client, s.id)).commit
        assert (own.parent, own.depth, own.message_count) == (commit, 2, 1)
        told = story(client, own.commit)
        assert [told.count(text) for text in ("Why does", "A tab.", "Mend it.")] == [1, 1, 1]
        assert "Why does the test fail?" in s.assemble().text
        fork = started(client, commit=own.commit)
        assert said(fork) == said(s) and tip(client, fork.id) == own.commit
        early = started(client, session=s.id, tx=client.session_turn(s.id, turn=1).tx)
        assert said(early) == ASKED and tip(client, early.id) == commit
        with refused("invalid_params"):
            client.session_create(context=StartContext(commit=client.commit_checkpoint("x", "?").commit.commit))


@pytest.mark.requirement("SES-41")
def test_a_session_starts_from_a_context_with_many_images(client: SyncClient) -> None:
    parent, images = None, 24
    for number in range(images):
        data = b64encode(bytes([number]) * 600_000).decode()
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        line = json.dumps({"type": "user", "message": {"role": "user", "content": [image]}, "uuid": str(number)})
        made = client.commit_checkpoint("claude-code-v1", f"{line}\n", template="a", parent=parent)
        parent = made.commit.commit
    assert parent is not None
    events = client.session_events(started(client, commit=parent).id, limit=100).events
    assert len(events) == images


@pytest.mark.requirement("SES-41")
def test_the_context_of_a_chain_with_a_compaction_begins_with_it_and_has_tool_calls(client: SyncClient) -> None:
    s = client.session("c", agent="a")
    s.append(events=[PromptEvent(text="Old."), CompactionEvent(summary="All was read."), PromptEvent(text="New.")])
    s.append(events=[ToolCallEvent(call="t1", tool="bash", args={"command": "ls"})])
    s.append(events=[ToolResultEvent(call="t1", text="a.py")])
    made = client.commit_materialize(tip(client, "c"))
    delta = {"delta": made.content} if made.content_base64 is None else {"delta_base64": made.content_base64}
    copy = client.commit_checkpoint("events-v1", template="a", **delta).commit.commit
    t = started(client, commit=copy)
    events = client.session_events(t.id).events
    assert [each.event for each in events] == [each.event for each in client.session_events("c").events][1:]


@pytest.mark.requirement("SES-41")
def test_a_session_of_captured_commits_gives_the_template_and_they_give_the_chat(
    client: SyncClient, tree: Path
) -> None:
    made = client.session_create("coder", workdir=str(tree), system_prompt="Be brief.").session
    commit = client.commit_checkpoint("claude-code-v1", PROMPT + ANSWER, session=made.session).commit.commit
    view = started(client, commit=commit).view().session
    assert (view.agent, view.workdir, view.turn_count) == ("coder", str(tree), 1)
    assert client.object_get(f"system_prompt:{view.session}").object.payload["content"] == "Be brief."


@pytest.mark.requirement("SES-40")
def test_a_turn_checkpoint_represents_the_end_of_its_turn(client: SyncClient) -> None:
    s = client.session("w", agent="a", checkpoint="turn")
    s.user("One.")
    s.append(events=[ResponseEvent(text="Yes.")])
    s.user("Two.")
    block_until(lambda: len(client.commit_list(session="w").commits) == 1)
    (commit,) = client.commit_list(session="w").commits
    t = started(client, commit=commit.commit)
    assert said(t) == [(1, [("user", "One."), ("assistant", "Yes.")])]
    t.user("Other.")
    own = client.commit_show(tip(client, t.id)).commit
    told = story(client, own.commit)
    assert [told.count(text) for text in ("One.", "Yes.", "Two.", "Other.")] == [1, 1, 0, 1]


@pytest.mark.requirement("SES-42")
def test_the_newest_work_of_a_principal_is_resumed_after_a_crash(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        client.session("old", agent="demo").user("Older.")
        tip(client, "old")
        s = client.session("lost", agent="demo")
        s.user("Begin.")
        first = tip(client, "lost")
        s.append(events=[ResponseEvent(text="It was not committed.")])
        client.session("idle", agent="demo")
        client.session("else", agent="other").user("Another template.")
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert said(started(client, principal="")) == [(1, [("user", "Another template.")])]
        t = started(client, "demo", principal="")
        assert said(t) == [(1, [("user", "Begin."), ("assistant", "It was not committed.")])]
        newest = client.commit_show(tip(client, t.id)).commit
        assert (newest.parent, newest.session, newest.message_count) == (first, "lost", 1)
        again = started(client, "demo", principal=newest.principal)
        assert (said(again), tip(client, again.id)) == (said(t), newest.commit), "resumed twice: two branches"
        t.user("Go on.")
        again.user("Go elsewhere.")
        assert "elsewhere" not in story(client, tip(client, t.id))
        with refused("commit_not_found"):
            started(client, "unknown", principal="")
        for session in (again.id, t.id):
            client.session_remove(session)
        assert said(started(client, "demo", principal="")) == said(client.session("lost"))
        client.session_remove("lost")
        with refused("session_removed"):
            started(client, commit=newest.commit)


@pytest.mark.requirement("SES-43")
def test_the_commands_start_sessions_from_commits_moments_and_principals(kept: Running, tmp_path: Path) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s1", agent="demo", workdir=str(tmp_path))
        for n in range(3):
            s.user(f"turn {n}")
        commit = tip(client, "s1")
        client.commit_tag(commit, "good")
        s.user("late")

        def turns(*words: str) -> int:
            session = ctx(kept, *words, "-q").stdout.strip()
            return client.session_get(session).session.turn_count

        assert turns("fork") == 4, "the only open session"
        assert turns("fork", "s1") == 4
        assert turns("fork", "s1@2") == 2
        assert turns("fork", "s1@~1") == 3
        assert turns("fork", commit) == 3
        assert turns("fork", "good") == 3
        assert turns("fork", f"{commit}~0") == 3
        assert turns("fork", "s1@{now}") == 4
        assert turns("session", "new", "reviewer", "--context", "good", "--workdir", str(tmp_path)) == 3
        principal = client.commit_show(commit).commit.principal
        assert turns("resume", principal, "--agent", "demo") == 4
        shown = json.loads(ctx(kept, "fork", commit, "--agent", "reviewer", "--id", "r", "--json").stdout)
        assert (shown["session"], shown["agent"], shown["workdir"]) == ("r", "reviewer", str(tmp_path))
        assert ctx(kept, "fork", commit, "--id", "q").stdout == "q continues after 3 turns\n"
        missing = ctx(kept, "fork", "nothing")
        assert missing.returncode == 3 and "no commit is named" in missing.stderr
        assert ctx(kept, "fork", "s1@99").returncode == 3


@pytest.mark.requirement("SES-44")
def test_a_sandbox_with_only_a_fork_materialises_the_chain_the_fork_continues(
    client: SyncClient, start: Any, boxed: Any
) -> None:
    base = start(filesystem_id=BOX, workdir="/workspace")
    base.user("Older.")
    older = tip(client, base.id)
    base.user("Before.")
    before = tip(client, base.id)
    fork = client.session(base.fork().session)
    base.user("Not in the fork.")
    after = tip(client, base.id)
    client.commit_annotate(before, "a later summary")
    aside = client.commit_checkpoint("claude-code-v1", PROMPT, session=base.id, parent=older).commit.commit
    fork.user("In the fork.")
    with inside(boxed(fork, mounts=())) as agent:
        own = tip(agent, fork.id)
        assert [own, before, older] == [each.commit for each in agent.commit_history(own).commits]
        told = agent.commit_materialize(own, stop="root", format="narrative-v1").content or ""
        assert [told.count(text) for text in ("Older.", "Before.", "In the fork.", "Not in")] == [1, 1, 1, 0]
        shown = agent.commit_show(before)
        assert (shown.commit.summary, shown.children) == ("", (own,)), "as it was, and nothing of the other branch"
        tx = client.commit_show(before).commit.tx
        assert agent.commit_show(before, tx=tx).commit.summary == ""
        line = agent.commit_checkpoint("claude-code-v1", ANSWER, session=fork.id, parent=before).commit
        assert line.parent == before
        for foreign in (after, aside):
            for look in (agent.commit_show, agent.commit_history, lambda id: agent.commit_materialize(commit=id)):
                with refused("commit_not_found"):
                    look(foreign)
        for change in (lambda: agent.commit_annotate(before, "mine"), lambda: agent.commit_tag(before, "mine")):
            with refused("invalid_params"):
                change()
        listed = {each.commit for each in agent.commit_list().commits}
        assert listed == {own, line.commit}
    client.object_purge(f"commit:{before}")
    second = client.session(client.session_fork(fork.id).session)
    with inside(boxed(second, mounts=())) as agent:
        assert agent.commit_show(before).commit.artifact_ref is None
        newest = agent.commit_resolve(session=second.id).commit
        assert newest is not None and newest.session == fork.id, "it has none of its own"
        with refused("purged"):
            agent.commit_materialize(newest.commit, stop="root")


@pytest.mark.requirement("SES-44")
def test_a_sandbox_sees_the_commit_that_its_session_began_with_back_to_its_compaction(
    client: SyncClient, boxed: Any
) -> None:
    secret = client.commit_checkpoint("claude-code-v1", PROMPT).commit.commit
    compact = client.commit_checkpoint("claude-code-v1", PROMPT, parent=secret, commit_type="compaction").commit.commit
    first = client.commit_checkpoint("claude-code-v1", ANSWER, parent=compact).commit.commit
    made = client.session_create("a", context=StartContext(commit=first), filesystem_id=BOX).session
    with inside(boxed(client.session(made.session), mounts=())) as agent:
        assert tip(agent, made.session) == first
        assert "A tab." in (agent.commit_materialize(first, format="narrative-v1").content or "")
        assert agent.commit_show(compact).commit.commit_type == "compaction"
        with refused("commit_not_found"):
            agent.commit_show(secret)
        with refused("commit_not_found"):
            agent.commit_materialize(first, stop="root")
        for depth in (2, 3, 50):
            page = agent.commit_history(first, depth=depth)
            assert ([each.commit for each in page.commits], page.next_commit) == ([first, compact], None)
        assert agent.commit_history(first, depth=1).next_commit == compact


@pytest.mark.requirement("CMT-31")
def test_a_turn_of_a_session_that_began_with_a_commit_names_that_commit_or_one_of_its_own(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s1", agent="demo")
        for n in range(1, 7):
            s.user(f"Turn {n}.")
            begun = tip(client, "s1")
        s.append(events=[CompactionEvent(summary="So far.")])
        s.user("Turn 7.")
        begun = tip(client, "s1")
        client.commit_tag(begun, "kept")
        s.close()
        s.remove()
        assert [each.action for each in client.session_gc(keep_ms=0, force=True).sessions] == ["emptied"]
        other = client.session(client.session_create("demo", context=StartContext(commit=begun)).session.session)
        names = [begun]
        for n in range(2):
            other.user(f"Own turn {n}.")
            names.append(tip(client, other.id))
        first = len(other.chat().turns) - len(names) + 1
        for n, name in enumerate(names):
            found = client.commit_resolve(session=other.id, turn=first + n).commit
            assert found is not None and found.commit == name
        found = client.commit_resolve(session=other.id, turn=0).commit
        assert found is not None and found.commit == begun


@pytest.mark.requirement("CMT-31")
def test_a_commit_is_named_by_the_turn_of_a_session(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s1", agent="demo", checkpoint="turn")
        for n in range(1, 5):
            s.append(events=[PromptEvent(text=f"turn {n}"), ResponseEvent(text="Yes.")])
            if n > 1:
                block_until(lambda n=n: len(client.commit_list(session="s1").commits) == n - 1)
        by_turn = [each.commit for each in reversed(client.commit_list(session="s1").commits)]
        newest = tip(client, "s1")
        named = {
            "s1@1": by_turn[0], "s1@2": by_turn[1], "@~2": by_turn[1], "s1@3~1": by_turn[1], "@~1": by_turn[2],
            "s1@4": newest, "HEAD~1": by_turn[2], "s1": newest, "s1@{now}": newest,
        }  # fmt: skip
        for name, commit in named.items():
            assert json.loads(ctx(kept, "show", name, "--json").stdout)["commit"]["commit"] == commit, name
        for name, code in (("s1@0", 3), ("s1@9", 3), ("nobody@1", 3), ("s1@{never}", 2)):
            assert ctx(kept, "show", name).returncode == code, name
        assert ctx(kept, "diff", "s1@1", "@~1").stdout.count("turn 1") <= 1
        fork = started(client, commit=by_turn[1])
        assert client.commit_resolve(session=fork.id, turn=2).commit == client.commit_show(by_turn[1]).commit
        assert "its turns are 0 to 4" in ctx(kept, "show", "s1@9").stderr
        with refused("turn_not_found"):
            client.commit_resolve(session="s1", turn=99)
        with refused("invalid_params"):
            client.commit_resolve(turn=1)


@pytest.mark.requirement("SES-46")
@pytest.mark.parametrize("made", ["fork", "session", "commit", "foreign commit"])
def test_a_session_continuing_a_harness_session_is_not_identified_as_it(kept: Running, made: str) -> None:
    with connect_sync(kept.socket) as client:
        handed_over = {"handed_over": "1 1 " + "0" * 32, "hidden": "review"}
        labels = {"harness": "codex", "native_session": "n1", "task": "parser", **handed_over}
        s = client.session("codex-n1", agent="codex", labels=labels)
        client.session_annotate(
            s.id, recorded=RecordedSession(title="Mend it", began_at=1000, ended_at=2000, permissions={"mode": "plan"})
        )
        s.user("go")
        commit = client.context_current(session=s.id).context_id
        line = '{"type":"user","message":{"content":"go"}}\n'
        foreign = client.commit_checkpoint("claude-code-v1", line, session=s.id, valid_time=1500).commit.commit
        if made == "fork":
            other = client.session_fork(s.id).session
        else:
            context = {
                "session": StartContext(session=s.id), "commit": StartContext(commit=commit),
                "foreign commit": StartContext(commit=foreign),
            }[made]  # fmt: skip
            other = client.session_create(context=context).session.session
        view = client.session_get(other).session
        assert (view.labels, view.title) == ({"task": "parser"}, "Mend it")
        assert view.recorded == RecordedSession(title="Mend it")
        assert [each.session for each in client.session_list(label="native_session=n1").sessions] == [s.id]
        assert client.session_list().sessions[0].session == other, "the newest"
        assert client.session_get(s.id).session.labels == labels


@pytest.mark.requirement("LST-12")
def test_the_newest_work_of_this_project_is_resumed_and_named(kept: Running, tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    (here / "sub").mkdir(parents=True)
    other.mkdir()
    with connect_sync(kept.socket) as client:
        for name, directory in (("old", here), ("mine", here), ("elsewhere", other)):
            client.session_create("demo", session=name, workdir=str(directory))
            client.session(name).user(f"Work of {name}")
        client.session_create("demo", session="empty", workdir=str(here))
        client.session_create("demo", session="put-away", workdir=str(here))
        client.session("put-away").user("Archived")
        client.session_annotate("put-away", archived=True)

        done = ctx(kept, "resume", folder=here)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(" continues from mine (Work of mine), after 1 turn\n")
        made = client.session_get(done.stdout.split()[0]).session
        assert made.origin is not None and made.origin.session == "mine" and made.project.directory == str(here)
        client.session("old").user("Again")
        assert "from old (Work of old)" in ctx(kept, "resume", "--agent", "demo", folder=here).stdout
        assert "from elsewhere" in ctx(kept, "resume", folder=other).stdout

        missing, principal = ctx(kept, "resume", folder=tmp_path), made.principal
        assert missing.returncode == 3 and missing.stderr == (
            f"ctx: no session of {principal} in {tmp_path} has work to continue; "
            f"ctx resume {principal} continues its newest work in any project\n"
        )
        assert ctx(kept, "resume", "--agent", "nobody", folder=here).returncode == 3
        principal = made.principal
        anywhere = client.session_create(context={"principal": principal}).session
        assert anywhere.turn_count == 1
        with refused("invalid_params"):
            client.session_create(context={"session": "old", "project": str(here)})
        with refused("invalid_path"):
            client.session_create(context={"principal": "", "project": "here"})


def added(client: SyncClient, session: str, text: str, parent: str | None = None) -> str:
    """A commit of ``session`` with the prompt ``text``, which is not in its chat."""
    line = json.dumps({"type": "user", "uuid": text, "message": {"role": "user", "content": text}})
    return client.commit_checkpoint("claude-code-v1", f"{line}\n", session=session, parent=parent).commit.commit


def texts(s: SyncSession) -> list[str]:
    return [text for _, turn in said(s) for _, text in turn]


@pytest.mark.requirement("SES-41")
@pytest.mark.parametrize("began", ["restored", "forked", "written"])
def test_a_session_has_the_conversation_of_commits_that_were_never_in_the_chat_of_theirs(
    client: SyncClient, began: str
) -> None:
    app = client.session_create("claude", session=f"app-{began}").session.session
    if began == "written":
        client.session(app).user("One.")
        first = tip(client, app)
        other = app
    else:
        first = added(client, app, "One.")
        added(client, app, "Two.", first)
        other = started(client, commit=first).id
        other = started(client, session=other).id if began == "forked" else other
    second = added(client, other, "Split.", first)
    third = added(client, other, "Join.", second)
    for context, expected in (
        ({"commit": first}, ["One."]), ({"commit": second}, ["One.", "Split."]),
        ({"commit": third}, ["One.", "Split.", "Join."]), ({"session": other}, ["One.", "Split.", "Join."]),
        ({"principal": ""}, ["One.", "Split.", "Join."]),
    ):  # fmt: skip
        s = started(client, **context)
        assert texts(s) == expected, context
        assert tip(client, s.id) == context.get("commit", third)
        assert all(text in s.assemble().text for text in expected)
        s.user("Go on.")
        told = story(client, tip(client, s.id))
        assert [told.count(text) for text in (*expected, "Go on.")] == [1] * (len(expected) + 1)
        client.session_remove(s.id)
    tx = client.commit_show(second).commit.tx
    assert texts(started(client, session=other, tx=tx)) == ["One.", "Split."], "a moment of the session"


@pytest.mark.requirement("SES-40")
def test_a_start_from_a_commit_beside_a_longer_chat_uses_the_chat(client: SyncClient) -> None:
    s = client.session("beside", agent="a")
    s.user("Only in the chat.")
    commit = added(client, s.id, "Beside it.")
    unread = client.commit_checkpoint("x", "?", session=s.id, parent=tip(client, s.id)).commit.commit
    for context in ({"commit": commit}, {"commit": unread}, {"session": s.id}):
        assert texts(started(client, **context)) == ["Only in the chat."], context


@pytest.mark.requirement("SES-30")
@pytest.mark.parametrize("of", ["session", "fork"])
def test_a_fork_at_a_turn_continues_the_commit_that_the_turn_names(client: SyncClient, of: str) -> None:
    s = client.session(f"turns-{of}", agent="a", checkpoint="turn")
    seqs: list[int] = []
    for n in range(3):
        for event in (PromptEvent(text=f"Q{n}."), ResponseEvent(text=f"A{n}.")):
            receipt = client.session_append(s.id, events=[event]).receipt
            assert receipt is not None
            seqs.append(receipt.seq)
        block_until(lambda n=n: len(client.commit_list(session=s.id).commits) == n)
    source = s.id if of == "session" else started(client, session=s.id).id
    ends = [client.session_turn(source, turn=turn).tx for turn in (1, 2)]
    for tx, turn, expected in (
        (ends[0], 1, ["Q0.", "A0."]), (seqs[2], 1, ["Q0.", "A0.", "Q1."]), (ends[1], 2, ["Q0.", "A0.", "Q1.", "A1."]),
    ):  # fmt: skip
        named = client.commit_resolve(session=source, turn=turn).commit
        for fork in (
            started(client, session=source, tx=tx),
            client.session(client.session_fork(source, tx=tx).session),
        ):
            assert texts(fork) == expected
            assert client.commit_resolve(session=fork.id).commit == named is not None
            fork.user("Else.")
            told = story(client, tip(client, fork.id))
            wanted = [int(text in expected) for text in ("Q0.", "A0.", "Q1.", "A1.", "Q2.")]
            assert [told.count(text) for text in ("Q0.", "A0.", "Q1.", "A1.", "Q2.")] == wanted
    early = started(client, session=source, tx=seqs[0])
    assert texts(early) == ["Q0."] and client.commit_resolve(session=early.id).commit is None, "within turn 1"
    assert "A0." not in story(client, tip(client, early.id))


@pytest.mark.requirement("SES-30")
def test_a_fork_at_a_time_continues_no_later_commit(client: SyncClient) -> None:
    s = client.session("timed", agent="a")
    s.user("One.")
    first = tip(client, s.id)
    receipt = client.session_append(s.id, events=[PromptEvent(text="Two.")]).receipt
    assert receipt is not None
    tip(client, s.id)
    fork = started(client, session=s.id, valid_time=receipt.vt - 1)
    assert texts(fork) == ["One."]
    assert client.commit_resolve(session=fork.id).commit == client.commit_show(first).commit
