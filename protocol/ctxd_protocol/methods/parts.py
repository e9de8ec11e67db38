"""What parameters and results of every family are made of."""

from typing import Annotated

import msgspec

from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.objects import Receipt

PathText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=PAGE_ITEMS_MAX)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters by name; an unknown or missing name is refused."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, an object with named members."""


class Nothing(Params, frozen=True, kw_only=True):
    """No parameters."""


class WriteResult(Result, frozen=True, kw_only=True):
    """A write without other result; ``receipt`` null when nothing was to be written."""

    receipt: Receipt | None
