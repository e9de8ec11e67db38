"""``ctx context`` of the current state: which window it shows, and that looking at it changes nothing."""

import json
import re

import pytest

from ctxd_protocol.event_types import ToolCallEvent, ToolResultEvent

pytestmark = pytest.mark.timeout(120)


@pytest.mark.requirement("REQ-10")
def test_a_look_at_the_context_does_not_change_what_a_turn_shows(real, session, tmp_path):
    file = tmp_path / "tree/a.py"
    session.user("third")
    seen = session.assemble()
    file.write_text("newer than the model saw\n")
    for words in ((), ("--text",), ("--json",), ("--layout", "append"), ("--plan", "10"), ("--why", "/w/a.py")):
        assert real("context", *words).code == 0
    assert "newer than the model saw" in real("context", "--text").out
    assert real("context").out.splitlines()[0].startswith(f"{session.id}  turn 3  next text  ")
    assert [each.number for each in session.assemblies().assemblies] == [1, 2, 3]
    for revision in ("@3", "@~0"):
        assert real("context", revision, "--text").out == seen.text


@pytest.mark.requirement("CLI-3")
def test_a_session_with_requests_shows_the_window_of_the_next_one(real, session):
    call = ToolCallEvent(call="c1", tool="Bash", args={"command": "make"})
    session.append(events=[call, ToolResultEvent(call="c1", text="built")])
    assert "next text" in real("context").out
    session.assemble(format="anthropic-messages", model="claude-sonnet-4-5")
    session.user("third")
    shown = real("context", "--json").json
    assert (shown["layout"], shown["number"]) == ("append", 0)
    assert {"kind=call id=c1 tool=Bash", "kind=output id=c1"} <= {
        block["text"].split("\n")[0].removeprefix("WINDOW_ITEM ") for block in shown["blocks"]
    }
    texts = [line.rpartition("  ")[2] for line in real("context").out.splitlines()]
    assert {'call Bash: {"command":"make"}', "output: built", "user: third"} <= {*texts}
    lines = real("context", "--layout", "spec").out.splitlines()
    assert "next text" in lines[0]
    assert not any(line.startswith("request ") for line in lines)


@pytest.mark.requirement("USE-6")
def test_the_context_of_a_session_with_requests_shows_what_the_newest_one_costs(real, session):
    model = "claude-sonnet-4-5"
    assert "request " not in real("context").out, "there is none yet"
    first = real("context", "--record", "--format", "anthropic-messages", "--model", model)
    assert f"request       assembly 3 for {model}: " in first.err
    assert "\nprefix        none: this is the first request\n" in first.err
    session.user("third")
    looked = real("context", "--format", "anthropic-messages", "--model", model)
    assert f"request       the next one for {model}: " in looked.err
    ran = real("context", "--record", "--format", "anthropic-messages", "--model", model, "--json").json
    cost = ran["cost"]
    assert ran["number"] == 4, "a look records nothing"
    assert ran["request"] == json.loads(looked.out)
    assert 0 < cost["shared_bytes"] < cost["before_bytes"] < ran["bytes"]
    assert (cost["broken_by"], cost["reserve"], cost["model"]) == (None, None, model)
    assert 0 < cost["price"] <= cost["history_price"]
    session.usage({"input_tokens": 5_000, "output_tokens": 10})
    session.user("fourth")
    billed = real("context", "--record", "--format", "anthropic-messages", "--model", model, "--json").json["cost"]
    assert billed["tokens"] > 5_000
    assert billed["reserve"] > 0
    lines = real("context").out.splitlines()
    assert lines[0].startswith(f"{session.id}  turn 4  next request  ")
    assert re.match(rf"request       assembly 5 for {model}: 5,\d+ tokens \(± \d+\), \$0\.\d{{6}}$", lines[1])
    assert re.match(r"prefix        \d\d\.\d% of the last request \(\S+ \S+, \S+ tokens\) unchanged$", lines[2])
    assert re.match(r"cached        \S+ tokens$", lines[3])
    assert re.match(r"full history  \S+ tokens, \$0\.\d{6}$", lines[4])
    assert max(map(len, lines[:5])) <= 80
    shown = real("context", "--assembly", "5", "--json").json
    assert shown["cost"] == billed
    assert json.loads(real("context", "--assembly", "5", "--text").out) == shown["request"]
    assert real("context", "--assembly", "5").out.splitlines()[2] == lines[1]
