"""How a client's method shows the signature of the function it is made from."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


_AWAITED = re.compile(r"\(await (.+?\))\)")


def shown_as(make: Callable[..., Any], *, bound: int = 0, awaited: bool = True) -> Callable[[F], F]:
    """Give a method the name, docstring and parameters of ``make``, less the first ``bound``, which the method
    knows. A method that is not ``awaited`` shows an example that awaits nothing."""

    def dress(method: F) -> F:
        signature = inspect.signature(make)
        parameters = list(signature.parameters.values())[bound:]
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        dressed = functools.wraps(make)(method)
        dressed.__signature__ = signature.replace(parameters=[this, *parameters])  # type: ignore[attr-defined]
        if not awaited and make.__doc__:
            dressed.__doc__ = _AWAITED.sub(r"\1", make.__doc__).replace("await ", "")
        return dressed  # type: ignore[return-value]

    return dress
