"""Table of models: prices, prompt caches and limits, from ``models.toml`` and from a file of the operator.

``assembly/pricing.py`` computes the price of a request from it. The operator's file overrides single fields of known
models and adds models. The whole table is validated before it takes effect.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd.errors import CtxdError

BUILT_IN: Final = Path(__file__).with_suffix(".toml")
"""File of the built-in models."""

_DATE: Final = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})\Z")

_RETIRED: Final = frozenset({"cache_breakpoints", "cache_lookback"})
"""Unused fields that files of earlier versions may have."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class ModelsRefused(Exception):
    """An invalid file of models. The message names the file, the model, and the fault."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. Prices are integers: micro-dollars per million tokens.

    ``cache_write`` is the price of writing to the prompt cache, by the cache's lifetime in seconds; it is never empty.
    ``context_tokens``: input and output together.
    ``system_updates``: the model accepts system messages within the conversation.
    """

    provider: Literal["anthropic", "openai"]
    context_tokens: _Positive
    output_tokens_max: _Positive
    input: _Count
    output: _Count
    cache_read: _Count
    cache_write: Annotated[dict[_Positive, _Count], msgspec.Meta(min_length=1)]
    cache_min_tokens: _Count
    system_updates: bool

    @property
    def lifetime_s(self) -> int:
        """The shortest lifetime of the cache, which is the provider's default."""
        return min(self.cache_write)

    def __post_init__(self) -> None:
        if dear := [life for life, price in self.cache_write.items() if price < self.cache_read]:
            raise ValueError(f"cache_write.{dear[0]} costs less than cache_read, so no request would read the cache")
        if self.output_tokens_max >= self.context_tokens:
            raise ValueError("output_tokens_max leaves no token of context_tokens for the input")


class Models:
    """Models by name. ``files``: the files that the table was read from, the built-in one first."""

    def __init__(self, models: Mapping[str, Model], files: tuple[Path, ...]) -> None:
        self._models = dict(sorted(models.items()))
        self._files = files

    def get(self, name: str) -> Model:
        """The model ``name``; a dated name without an entry of its own stands for the name without the date.

        Raises: CtxdError invalid_params for a model that is not in the table.
        """
        model = self.find(name)
        if model is None:
            known = ", ".join(self._models)
            hint = "Add it to ~/.config/ctxd/models.toml" if len(self._files) == 1 else f"Add it to {self._files[-1]}"
            raise CtxdError(
                "invalid_params",
                f"unknown model {name!r}; known models: {known}",
                hint=f"{hint} ({self._files[0]} explains the fields), and restart the daemon.",
            )
        return model

    def find(self, name: str) -> Model | None:
        """The model ``name``, found as by ``get``; None for a model that is not in the table."""
        return self._models.get(name) or self._models.get(_DATE.sub("", name))

    def names(self) -> tuple[str, ...]:
        """Names of all models, in alphabetical order."""
        return tuple(self._models)

    def to_json(self) -> dict[str, object]:
        """Fields of every model by its name, as JSON values."""
        return {name: msgspec.to_builtins(model, str_keys=True) for name, model in self._models.items()}

    def toml(self) -> str:
        """The table as a file that ``read_models`` accepts."""
        lines = ["# From " + " and ".join(map(str, self._files))]
        for name, model in self._models.items():
            lines += ["", f"[models.{msgspec.json.encode(name).decode()}]"]
            for field, value in msgspec.structs.asdict(model).items():
                prices = value if isinstance(value, dict) else {}
                inner = ", ".join(f"{life} = {price:_}" for life, price in sorted(prices.items()))
                shown = f"{{ {inner} }}" if inner else f'"{value}"'
                if isinstance(value, int):
                    shown = str(value).lower() if isinstance(value, bool) else f"{value:_}"
                lines.append(f"{field} = {shown}")
        return "\n".join(lines) + "\n"


def read_models(path: Path | None = None) -> Models:
    """The built-in models, with the changes and additions of the file at ``path``, if given. Blocks.

    Raises: ModelsRefused.
    """
    tables = _tables(BUILT_IN)
    for name, fields in _tables(path).items() if path is not None else ():
        default = {"system_updates": fields.get("provider") == "openai"}
        tables[name] = {**tables.get(name, default), **fields}
    models = {}
    for name, given in tables.items():
        fields = {field: value for field, value in given.items() if field not in _RETIRED}
        try:
            models[name] = msgspec.convert(fields, Model, strict=True, str_keys=True)
        except msgspec.ValidationError as error:
            raise ModelsRefused(f"{path or BUILT_IN}: model {name}: {error}") from error
    return Models(models, (BUILT_IN,) if path is None else (BUILT_IN, path))


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelsRefused(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelsRefused(f"{path}: not TOML: {error}") from error
    if unknown := [key for key in document if key != "models"]:
        raise ModelsRefused(f"{path}: unknown key {unknown[0]!r}; every model is a table [models.NAME]")
    models = document.get("models", {})
    if not isinstance(models, dict) or not all(isinstance(fields, dict) for fields in models.values()):
        raise ModelsRefused(f"{path}: models has a value that is not a table; every model is a table [models.NAME]")
    return models
