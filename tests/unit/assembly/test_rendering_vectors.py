"""The rendering examples that programs in other languages are held to."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxd.assembly.spec_rendering import RENDERER
from tests.unit.assembly.parsing import parse
from tests.unit.assembly.reference import (
    ActiveContent,
    ChatText,
    Context,
    FileLine,
    ToolcallLine,
    ToolcallRef,
    ToolMessage,
    render,
)

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "protocol/vectors/rendering.json").read_text())


def context_of(sections: dict[str, Any]) -> Context:
    def without(value: dict[str, Any], key: str) -> dict[str, Any]:
        return {name: kept for name, kept in value.items() if name != key}

    entries = {"toolcall": ToolcallRef, "tool": ToolMessage}
    kinds = {"file": FileLine, "toolcall": ToolcallLine}
    return Context(
        system_prompt=sections["system_prompt"],
        pool=tuple(kinds[line["type"]](**without(line, "type")) for line in sections["pool"]),
        chat=tuple(
            entries[entry["role"]](**without(entry, "role")) if entry["role"] in entries else ChatText(**entry)
            for entry in sections["chat"]
        ),
        active=tuple(ActiveContent(**active) for active in sections["active"]),
    )


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_every_example_renders_to_its_text_and_back(case: dict[str, Any]) -> None:
    context = context_of(case["sections"])
    assert render(context) == case["text"]
    assert parse(case["text"]) == context


def test_the_examples_are_of_this_version_of_the_renderer() -> None:
    assert VECTORS["renderer"] == RENDERER
    assert len(VECTORS["cases"]) >= 11
