"""Comparison of a state directory with a node."""

import pytest

from ctxd.backends.xtdb.messages import PutDoc, Unknown
from ctxd.projection import comparison
from tests.unit.projection.projecting import compared, fill, level, projecting

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


class TestComparing:
    @pytest.mark.parametrize("fields", [{"tool": "forged", "n": 4}, {"no": "form"}])
    async def test_a_version_that_was_changed_at_the_node_is_found(self, root, node, fields):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        ops = next(op for ops in node.log for op in ops if isinstance(op, PutDoc) and op.doc["xt/id"] == "t4")
        doc = {**ops.doc, "payload": {**ops.doc["payload"], "fields": fields}}
        await node.submit([PutDoc(doc, ops.valid_time)])
        found = await compared(root, node.connect)
        assert found.worst == "damage" and not found.equal
        assert "t4" in found.problems[0].message

    async def test_a_version_too_many_and_a_missing_text_are_found(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 2)
            await level(store)
        op = next(op for ops in node.log for op in ops if isinstance(op, PutDoc) and op.doc["xt/id"] == "t1")
        await node.submit([PutDoc({**op.doc, "xt/id": "planted"}, op.valid_time)])
        text = next(op for ops in node.log for op in ops if isinstance(op, PutDoc) and op.doc["type"] == "content")
        await node.submit([PutDoc({**text.doc, "payload": {"text": "another"}}, text.valid_time)])
        messages = [problem.message for problem in (await compared(root, node.connect)).problems]
        assert len(messages) == 2 and "planted" in messages[0] and "text" in messages[1]

    async def test_unprojected_rows_are_a_warning(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 5)
            await level(store)
            node.down = True
            await fill(store, 1, first=5)[0].wait()
        node.down = False
        found = await compared(root, node.connect)
        assert found.equal and [problem.severity for problem in found.problems] == ["warning"]

    async def test_a_node_that_does_not_reach_the_end_of_the_log_is_compared_as_it_is(self, root, node, monkeypatch):
        async with projecting(root, node.connect) as store:
            fill(store, 5)
            await level(store)

        async def late(timeout_s):
            raise Unknown("timeout")

        monkeypatch.setattr(node, "sync", late)
        found = await compared(root, node.connect)
        assert found.equal and found.problems == []

    @pytest.mark.requirement("XTB-6")
    async def test_a_comparison_counts_only_entities_of_its_own_journal(self, root, node, monkeypatch):
        monkeypatch.setattr(comparison, "_PAGE", 4)
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        for number in range(20):
            await node.submit(
                [PutDoc({"xt/id": f"other{number}", "type": "file", "writer": "another", "payload": {}}, 5)]
            )
        await node.submit([PutDoc({"xt/id": "broken", "type": "file", "writer": store.writer, "payload": {}}, 5)])
        asked: list[str] = []
        entities = node.entities

        async def noted(ids, **at):
            asked.extend(wanted := list(ids))
            return await entities(wanted, **at)

        monkeypatch.setattr(node, "entities", noted)
        found = await compared(root, node.connect)
        assert [problem.message for problem in found.problems if "broken" not in problem.message] == []
        assert len(found.problems) == 1 and not any(id.startswith("other") for id in asked)
