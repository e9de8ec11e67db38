"""A node that lost its data, went back, or holds what the journal does not."""

import shutil

import pytest

from ctxd.objects.document import AsOf
from tests.unit.projection.projecting import compared, fill, level, projecting
from tests.unit.store.documents import document, write
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


class TestOtherNodes:
    async def test_a_wiped_node_is_noticed_and_gets_everything_again(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 100)
            await level(store)
            node.wipe()
            fill(store, 10, first=100)
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 100, "from": 0}]
        assert (await compared(root, node.connect)).equal

    async def test_a_node_restored_from_an_older_copy_gets_the_missing_rows(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 50)
            await level(store)
        older = node.copy()
        async with projecting(root, node.connect) as store:
            fill(store, 50, first=50)
            await level(store)
            node.become(older)
            fill(store, 1, first=100)
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 50, "from": 50}]
        assert (await compared(root, node.connect)).equal

    async def test_a_node_wiped_while_no_daemon_ran_is_noticed(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 30)
            await level(store)
        node.wipe()
        async with projecting(root, node.connect) as store:
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 30, "from": 0}]

    @pytest.mark.requirement("PRJ-3")
    async def test_a_journal_behind_its_node_stops_projecting_and_names_the_remedy(self, root, node, tmp_path):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        shutil.copytree(root, tmp_path / "copy")
        async with projecting(root, node.connect) as store:
            fill(store, 10, first=10)
            await level(store)
        async with projecting(tmp_path / "copy", node.connect) as store:
            await until(lambda: store.status().projection.state == "stopped")
            assert "rebuild-xtdb --force" in store.status().projection.reason
            await store.submit(write(document("other"))).wait()
            assert (await store.get("t3", AsOf(tx=5))).tx == 4
        [problem] = (await compared(tmp_path / "copy", node.connect)).problems
        assert problem.severity == "data_loss" and "rebuild-xtdb --force" in problem.message

    async def test_the_later_of_two_daemons_on_journal_copies_projects(self, root, node, tmp_path):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        shutil.copytree(root, tmp_path / "copy")
        async with projecting(root, node.connect) as first:
            await level(first)
            async with projecting(tmp_path / "copy", node.connect) as second:
                await level(second)
                fill(first, 3, first=100)
                await until(lambda: first.status().projection.state == "stopped")
                assert "copy" in first.status().projection.reason
                fill(second, 2, first=200)
                await level(second)
        assert (await compared(tmp_path / "copy", node.connect)).equal
