"""Calibration of token estimates by the usage that providers billed. Pure.

A window grows by two parts from one request to the next. The tokens of the model's reply are known: the provider billed
them as output. Everything else came from outside, and is estimated by a linear model of four terms: the number of
items, and three classes of characters in their text, as tokenizers treat prose, numbers, and the punctuation of code
and JSON differently. The four weights are fitted to the newest requests of the session for the same model and format:
ridge regression on relative errors towards ``1``, made robust by reweighting (Huber; iteratively reweighted least
squares), with bounded results. The result is a function of recorded data, so it is the same after a restart.

The priors are fits over recorded sessions, see ``bench/README.md``.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Final

import msgspec

from ctxd.assembly.window_items import AssistantText, ImageItem, Reasoning, ToolOutput, ToolUse, WindowItem
from ctxd.sessions.stored_session import RecordUsage

REQUESTS_KEPT: Final = 33
"""Newest requests to which the weights are fitted, as pairs of consecutive ones."""

ITEM_TOKENS: Final = 12
"""Prior of the tokens of an item besides its text."""

IMAGE_TOKENS: Final = 1_500

_RIDGE: Final = 0.01
_ROUNDS: Final = 3
_TOLERANCE: Final = 0.02
"""Relative error above which a pair gets less weight."""

_WEIGHT_MIN: Final = 0.1
_WEIGHT_MAX: Final = 3.0

_SCALE_MIN: Final = 0.25
_SCALE_MAX: Final = 4.0

_ERROR_UNKNOWN: Final = 0.3
"""Relative error that is assumed without pairs to measure it, and the largest that is used."""

_ERROR_QUANTILE: Final = 0.9

_REPLY_PLAUSIBLE: Final = 0.5
"""Share of a reply's estimate below which its billed output is taken for a part: some harnesses record the first count
of a stream."""

_WHOLE_MIN: Final = 4
"""Number of increases after fully billed replies from which all others are ignored: those include the reasoning of
their replies, and would raise the weights of text."""

_LETTERS: Final = bytes(code for code in range(128) if chr(code).isalpha())
_BETWEEN_WORDS: Final = bytes(code if code in _LETTERS else 32 for code in range(256))
_DIGITS: Final = b"0123456789"
_MARKS: Final = bytes(code for code in range(33, 127) if not chr(code).isalnum())
_HIGH: Final = bytes(range(128, 256))


class ContentMeasures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Amount of content in items. ``words``, ``numbers`` and ``marks`` are in hundredths of a token by the prior; an
    image counts for a fixed number of tokens."""

    items: int = 0
    words: int = 0
    numbers: int = 0
    marks: int = 0
    images: int = 0

    def __add__(self, other: "ContentMeasures") -> "ContentMeasures":
        return ContentMeasures(
            self.items + other.items,
            self.words + other.words,
            self.numbers + other.numbers,
            self.marks + other.marks,
            self.images + other.images,
        )

    def __sub__(self, other: "ContentMeasures") -> "ContentMeasures":
        return ContentMeasures(
            self.items - other.items,
            self.words - other.words,
            self.numbers - other.numbers,
            self.marks - other.marks,
            self.images - other.images,
        )

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """Tokens by the prior: of the items, and of the three classes of their text."""
        return (self.items * ITEM_TOKENS, self.words / 100, self.numbers / 100, self.marks / 100)


def measure_text(text: str) -> tuple[int, int, int]:
    """Words, numbers and marks of ``text``, see ``ContentMeasures``. Cost: about 10 ns per character."""
    data = text.encode(errors="surrogatepass")
    letters, digits, marks, high = (
        len(data) - len(data.translate(None, some)) for some in (_LETTERS, _DIGITS, _MARKS, _HIGH)
    )
    words = len(data.translate(_BETWEEN_WORDS).split())
    return 25 * words + 19 * letters, 100 * digits + 130 * data.count(b"\n"), 65 * marks + 60 * high


def measure_items(items: Iterable[WindowItem]) -> tuple[ContentMeasures, ContentMeasures]:
    """Measures of those ``items`` that came from outside, and of those that the model wrote, without its reasoning."""
    sums = ([0] * 5, [0] * 5)
    for item in items:
        pictures = 0
        match item:
            case Reasoning():
                continue
            case ImageItem():
                text, pictures = "", 1
            case ToolUse():
                text = f"{item.tool} {item.arguments}"
            case ToolOutput():
                text, pictures = item.text, len(item.pictures)
            case _:
                text = item.text
        row = sums[isinstance(item, AssistantText | ToolUse)]
        for at, number in enumerate((not pictures or bool(text), *measure_text(text), pictures)):
            row[at] += number
    added, reply = sums
    return ContentMeasures(*added), ContentMeasures(*reply)


class CalibrationSample(msgspec.Struct, frozen=True, gc=False):
    """A request as recorded. ``base``: number of the assembly that began its window. ``outside``, ``reply``: measures
    of its whole window, see ``measure_items``."""

    number: int
    base: int
    format: str
    model: str
    outside: ContentMeasures
    reply: ContentMeasures

    def follows(self, other: "CalibrationSample") -> bool:
        """True if it is for the same model and format in the same window, so that it can only have more."""
        return (self.base, self.format, self.model) == (other.base, other.format, other.model)


class Estimate(msgspec.Struct, frozen=True):
    """Tokens of a request, estimated from the usage billed for earlier ones. ``reserve``: the error, in tokens, that
    nine of ten estimates of increases stay within."""

    tokens: int
    reserve: int


class _Increase(msgspec.Struct, gc=False):
    """A known increase: terms and tokens of the estimated part, and ``whole``, the tokens of all of it."""

    terms: tuple[float, ...]
    tokens: float
    whole: float


class Calibration(msgspec.Struct, frozen=True):
    """Weights of the terms for a model and format, and the relative ``error`` of increases estimated by them.

    ``anchor``: the newest request that was billed, ``billed`` its usage; ``is_newest``: no request was made after it.
    """

    weights: tuple[float, ...]
    error: float
    anchor: CalibrationSample
    billed: RecordUsage
    is_newest: bool

    def estimate(self, request: CalibrationSample) -> Estimate:
        """Estimate ``request``, which is newer than all requests used for this calibration, or about to be made."""
        anchor, billed, weights = self.anchor, self.billed, self.weights
        if not request.follows(anchor):
            # Another window: the content before the conversation, such as the tools, is the same.
            now, then = self._whole(request), self._whole(anchor)
            tokens = max(_SCALE_MIN * now, billed.tokens_in + now - then)
            return Estimate(ceil(tokens), ceil(self.error * abs(now - then)))
        came, reply = request.outside - anchor.outside, request.reply - anchor.reply
        increase = _tokens(_terms(came), weights) + _images(came)
        is_known = self.is_newest and _is_whole(billed, reply)
        increase += billed.output if is_known else _tokens(_terms(reply), weights)
        return Estimate(ceil(billed.tokens_in + increase), ceil(self.error * increase))

    def repacked(self, request: CalibrationSample, made: CalibrationSample) -> Estimate:
        """Estimate ``made``, a new window with the content of ``request``."""
        found, kept = self.estimate(request), self._whole(made)
        saved = self._whole(request) - kept
        # The errors of added and removed content add up, but not beyond the error of all remaining content.
        reserve = min(found.reserve + self.error * abs(saved), self.error * kept)
        return Estimate(ceil(max(_SCALE_MIN * kept, found.tokens - saved)), ceil(reserve))

    def _whole(self, request: CalibrationSample) -> float:
        return _tokens(_terms(request.outside, request.reply), self.weights) + _images(request.outside)


def calibrated(
    requests: Sequence[CalibrationSample], usage: Mapping[int, RecordUsage], format: str, model: str
) -> Calibration | None:
    """Calibrate the estimates of requests in ``format`` for ``model`` by ``requests``, oldest first, and their
    ``usage``, by the number of the request. None if nothing was billed for that model and format."""
    known = [each for each in requests if (each.format, each.model) == (format, model) and _billed(each, usage)]
    if not known:
        return None
    anchor = known[-1]
    increases = _increases(requests[-REQUESTS_KEPT:], usage, anchor)
    weights, error = _fitted(increases)
    return Calibration(weights, error, anchor, usage[anchor.number], anchor is requests[-1])


def _billed(request: CalibrationSample, usage: Mapping[int, RecordUsage]) -> bool:
    """True if tokens were billed for ``request``: none are for one that failed."""
    return request.number in usage and usage[request.number].tokens_in > 0


def _terms(*measures: ContentMeasures) -> tuple[float, ...]:
    return tuple(map(sum, zip(*(measure.terms for measure in measures), strict=True)))


def _tokens(terms: Sequence[float], weights: Sequence[float]) -> float:
    return sum(term * weight for term, weight in zip(terms, weights, strict=True))


def _images(measure: ContentMeasures) -> int:
    return measure.images * IMAGE_TOKENS


def _is_whole(billed: RecordUsage, reply: ContentMeasures) -> bool:
    """True if the billed output can cover all of ``reply``, and there is a reply."""
    return reply.items > 0 and billed.output >= _REPLY_PLAUSIBLE * sum(reply.terms)


def _increases(
    requests: Sequence[CalibrationSample], usage: Mapping[int, RecordUsage], like: CalibrationSample
) -> list[_Increase]:
    """The increases between consecutive billed ``requests`` for the model and format of ``like``: those after fully
    billed replies, or all of them if these are few."""
    found: list[_Increase] = []
    whole_replies: list[_Increase] = []
    for earlier, later in pairwise(requests):
        if (later.format, later.model) != (like.format, like.model) or not later.follows(earlier):
            continue
        if not (_billed(earlier, usage) and _billed(later, usage)):
            continue
        came, reply = later.outside - earlier.outside, later.reply - earlier.reply
        whole = usage[later.number].tokens_in - usage[earlier.number].tokens_in - _images(came)
        billed = usage[earlier.number]
        is_known = _is_whole(billed, reply)
        if is_known:
            terms, tokens = _terms(came), float(whole - billed.output)
        else:
            terms, tokens = _terms(came, reply), float(whole)
        if whole > 0 and sum(terms) > 0:
            found.append(_Increase(terms, tokens, float(whole)))
            if is_known or not reply.items:
                whole_replies.append(found[-1])
    return whole_replies if len(whole_replies) >= _WHOLE_MIN else found


def _fitted(increases: Sequence[_Increase]) -> tuple[tuple[float, ...], float]:
    """Weights of the terms, and the relative error of estimates by them."""
    scale = _scale(increases)
    prior = (1.0, scale, scale, scale)
    weights: tuple[float, ...] = prior
    for _ in range(_ROUNDS if increases else 0):
        normal = [[_RIDGE * (row == column) for column in range(4)] for row in range(4)]
        right = [0.0] * 4
        for each in increases:
            size = max(20.0, each.whole)
            error = abs(_tokens(each.terms, weights) - each.tokens) / size
            share = _TOLERANCE / max(_TOLERANCE, error) / size**2
            missing = each.tokens - _tokens(each.terms, prior)
            steps = [term * weight for term, weight in zip(each.terms, prior, strict=True)]
            for row, step in enumerate(steps):
                right[row] += share * step * missing
                for column, other in enumerate(steps):
                    normal[row][column] += share * step * other
        changes = _solved(normal, right)
        weights = tuple(
            weight * min(_WEIGHT_MAX, max(_WEIGHT_MIN, 1 + change))
            for weight, change in zip(prior, changes, strict=True)
        )
    errors = [abs(_tokens(each.terms, weights) - each.tokens) / each.whole for each in increases]
    errors = sorted((*errors, _ERROR_UNKNOWN))
    return weights, min(_ERROR_UNKNOWN, errors[ceil(_ERROR_QUANTILE * len(errors)) - 1])


def _scale(increases: Sequence[_Increase]) -> float:
    """The median ratio of billed tokens to those of the prior, weighted by size."""
    ratios = sorted((each.tokens / sum(each.terms), sum(each.terms)) for each in increases)
    half, reached = sum(size for _, size in ratios) / 2, 0.0
    for ratio, size in ratios:
        reached += size
        if reached >= half:
            return min(_SCALE_MAX, max(_SCALE_MIN, ratio))
    return 1.0


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric, positive definite system, by Gaussian elimination without pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at, row in enumerate(rows):
        for other in rows:
            if other is not row:
                factor = other[at] / row[at]
                other[at:] = [a - factor * b for a, b in zip(other[at:], row[at:], strict=True)]
    return [row[-1] / row[at] for at, row in enumerate(rows)]
