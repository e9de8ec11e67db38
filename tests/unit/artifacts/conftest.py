"""An artifact store of each test's own."""

import pytest

from ctxd.artifacts.artifact_store import ArtifactStore


@pytest.fixture
def root(tmp_path):
    return tmp_path / "artifacts"


@pytest.fixture
def store(root):
    store = ArtifactStore(root)
    store.create()
    return store
