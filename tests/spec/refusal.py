"""A refusal as a client sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ctxd_client import CallFailed


@contextmanager
def refused(*codes: str) -> Iterator[pytest.ExceptionInfo[CallFailed]]:
    """The block ends in a call that the daemon refuses with one of ``codes``."""
    with pytest.raises(CallFailed) as caught:
        yield caught
    assert caught.value.code in codes, caught.value
