"""The tests of this folder run where the packages are that the adapters adapt to."""

import pytest

from tests.adapters.conftest import missing, required


def test_the_adapters_are_tested_here() -> None:
    if names := missing():
        reason = f"{' and '.join(names)} not installed: run make adapters"
        pytest.fail(reason) if required() else pytest.skip(reason)
