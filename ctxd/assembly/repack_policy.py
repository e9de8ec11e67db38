"""Repack policy: when to rewrite a window, and which of its contents to remove then. Pure.

A window grows at its end, so that a request reads all but its newest part from the provider's prompt cache. Removing
content is a *repack*: everything after it has to be written to the cache again. It is worth it

- once the cache has expired, as everything is written again anyway (``cache_expired``);
- when the window exceeds its budget (``budget``);
- when carrying removable content has cost as much as rewriting everything after it would (``cost``): the ski rental
  rule, applied to every place at which the window could be broken.

**Removable** is outdated content (its file was read or its command run again later), and content whose tokens cost more
at each request than the chance that the model needs it again is worth: ``read price × tokens > worth × chance``. The
chance falls with the content's age; it is higher for files than for commands, and for a file or command that was read
or run before (``_CHANCES``). Pinned and explicitly activated content is never removed, that of the running turn only
for the budget.

**Bound.** Without a budget, the bill is at most 3 times that of any schedule that removes removable content, even of
one that knows the future. Let r and w be the prices of a token read from and written to the cache, r ≤ w; let *needed*
be all tokens except those that are removable at a request. Every schedule pays at least B, the bill of a window with
the needed tokens only: w·F for the F tokens at their first requests, including removable ones, which were needed then,
and r·M for the M tokens at later requests. Ours pays B + C + R: C for carrying, R for rewriting. An expired cache adds
nothing to either: all removable content is removed then, and every schedule writes the rest.

1. R ≤ C. A repack at a place costs (w - r)·(tokens kept after it) and happens only if the content that it removes has
   cost as much by then, including the request that is about to be made; nothing is removed twice.
2. C ≤ B. The cost of carrying content of t tokens is charged to its own first request up to w·t, which sums to w·F at
   most. Any cost beyond that arises while the content is *old*: carried for w·t already. At a request let O be the
   tokens of old content, and N the needed tokens in the cache after the first of them. As the rule did not break the
   window there, w·O ≤ (carried by old content) < (w - r)·N, so O < N: reading old tokens costs less than reading the
   needed ones, r·O < r·N, and is charged to those. These charges sum to r·M at most.

So B + C + R ≤ 3·B. With a factor f on the rule the same argument gives 2 + max(f, 1/f), which is least for f = 1. A
search for bad cases found none above 1.5. (Ski rental: Karlin, Manasse, Rudolph, Sleator, Competitive snoopy caching,
1988. Without B, breaking at one of several places is multilevel aggregation on a path: Bienkowski et al., 2013.)

**Budget.** Repacks forced by a budget m are outside this bound: a schedule that knows the future drops only content
that is not needed again, and ours may drop other content. Their extra cost is bounded by the new tokens. Let b < m be
the tokens left if such a repack removes everything it may. It leaves b + 0.3·(m - b) at most (``_REFILL``), so that
0.7·(m - b) new tokens arrive before the next one, for each of which every schedule pays w at least once. It pays (w -
r)·m at most beyond reading. So forced repacks after the first cost at most m / (0.7·(m - b)) times the writing of the
tokens added since: 2.9 times where half of the budget can be removed, and without bound as b approaches m.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from ctxd.models import Model
from ctxd_protocol.context_types import RepackReason

VERSION: Final = 2
"""Version of the policy, recorded with each request. It is raised whenever a change of the policy changes a
decision."""

Kind = Literal["file", "command", "other"]
"""Kind of content: a file that was read, the output of a command, or anything else."""

Aim = Literal["cost", "recall"]
"""Preference where a window has room. ``cost``: the recall of full history at less cost; ``recall``: more recall at no
more cost than full history."""

_CHANCES: Final[dict[Kind, tuple[float, ...]]] = {
    "file": (1 / 8, 3 / 10),
    "command": (1 / 40, 3 / 10, 9 / 10),
    "other": (1 / 80,),
}
"""Chance that the next tool call reads or runs the same, times (age + 4): by how often it was read or run already, the
last number for more. Maximum likelihood over recorded sessions, see ``bench/README.md``; content with neither path nor
command cannot be observed, and is assumed to be half as likely as a command that ran once."""

_AGE_SHIFT: Final = 4

_WORTH_TOKENS: Final = 20_000
_WORTH_BUDGET: Final = 64_000
_WORTH_TOKENS_MAX: Final = 1_000_000
_RECALL_FACTOR: Final = 3

GAIN_TOKENS_MIN: Final = 30
"""Fewest tokens saved for which content is replaced by a stub."""

CUT_TOKENS_MIN: Final = 200
"""Fewest tokens that remain of content that is cut."""

_EAGER: Final = 0.3
"""Share of the worth by which content after a break is judged: removing it is free then, and would cost later."""

_REFILL: Final = 0.3
"""Share of the room for removable contents that a repack for the budget leaves in use. The rest is for new content, so
that the window is not broken again at once."""


class Content(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Part of a window that a stub can replace: a tool output with the arguments of its call, or an activated file.

    ``before``: tokens of the window before it. ``tokens``: its own as it is shown; ``stub_tokens``: those of the stub.
    ``age``: tool outputs after it in the window. ``times``: how often its file was read or its command run by then.
    ``is_running``: it belongs to the current turn. ``is_kept``: it is pinned, or active by request. ``is_outdated``: a
    later content shows the same file or command again. ``is_new``: no request has included it yet.
    """

    key: str
    before: float
    tokens: float
    stub_tokens: float
    kind: Kind = "other"
    age: int = 0
    times: int = 1
    is_running: bool = False
    is_kept: bool = False
    is_outdated: bool = False
    is_new: bool = False

    @property
    def gain(self) -> float:
        """Tokens that the stub saves."""
        return self.tokens - self.stub_tokens

    @property
    def chance(self) -> float:
        """Chance that the next tool call reads or runs it again."""
        if self.is_outdated:
            return 0.0
        chances = _CHANCES[self.kind]
        return chances[min(self.times, len(chances)) - 1] / (self.age + _AGE_SHIFT)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the policy. ``budget_tokens``: the maximum for a request, None for no limit.

    ``worth_tokens``: the value, in uncached input tokens, of content that is in the window when the model needs it.
    ``file_tokens``, ``output_tokens``: tokens to which the content of a file, and any other output, is cut when it
    enters the window.
    """

    budget_tokens: int | None
    worth_tokens: float
    file_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, budget_tokens: int, aim: Aim = "cost") -> "Rules":
        """The parameters for a budget, by a single rule: see ``bench/README.md``."""
        worth = _WORTH_TOKENS * (budget_tokens / _WORTH_BUDGET) ** 3 * (_RECALL_FACTOR if aim == "recall" else 1)
        return cls(
            budget_tokens=budget_tokens,
            worth_tokens=min(worth, _WORTH_TOKENS_MAX),
            file_tokens=max(2_000, budget_tokens // 16),
            output_tokens=max(1_000, budget_tokens // 64),
        )

    @property
    def cuts(self) -> dict[Kind, int]:
        """Tokens to which content is cut when it enters the window, by its kind."""
        return {"file": self.file_tokens, "command": self.output_tokens, "other": self.output_tokens}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``choose_repack``: the contents to replace by stubs, and those to cut to a number of tokens, by key.

    ``reason`` None: nothing changes. ``carried`` is for the next decision. ``tokens``: of the window afterwards;
    ``over_by``: tokens by which it still exceeds the budget, as the rest is text, kept, or as short as possible.
    """

    reason: RepackReason | None
    remove: tuple[str, ...]
    cut: dict[str, int]
    carried: dict[str, int]
    tokens: float
    over_by: float


def choose_repack(
    contents: Sequence[Content],
    carried: Mapping[str, int],
    *,
    tokens: float,
    sent: float,
    idle_s: float | None,
    model: Model,
    lifetime_s: int,
    rules: Rules,
) -> Decision:
    """Decide on the window of the next request.

    ``contents``: those of the window that are not stubs, in order. ``carried``: see ``Decision``, empty at first.
    ``tokens``: of the window; ``sent``: tokens at its beginning that were in the last request too. ``idle_s``: seconds
    since that request, None without one. ``lifetime_s``: a key of the model's ``cache_write``. Cost: linear in
    ``contents``, and n log n for a repack; stubs cost nothing.
    """
    policy = _Policy(model, lifetime_s, rules)
    free = [each for each in contents if not each.is_kept and each.gain >= GAIN_TOKENS_MIN]
    old = [each for each in free if not each.is_running and not each.is_new]
    requests: dict[str, int] = {}
    chosen: list[Content] = []
    reason: RepackReason | None = None
    if idle_s is None or idle_s >= lifetime_s:
        chosen = [each for each in old if policy.is_removable(each, _EAGER)]
        reason = "cache_expired" if chosen else None
    else:
        removable = [each for each in old if policy.is_removable(each)]
        requests = {each.key: carried.get(each.key, 0) + 1 for each in removable}
        if (place := policy.place(removable, requests, sent)) is not None:
            chosen, reason = policy.behind(place, old), "cost"
    tokens -= sum(each.gain for each in chosen)
    cut: dict[str, int] = {}
    if rules.budget_tokens is not None and tokens > rules.budget_tokens:
        reason = "budget"
        gone = {each.key for each in chosen}
        forced = policy.forced([each for each in free if each.key not in gone], tokens, rules.budget_tokens)
        gone |= {each.key for each in forced}
        if forced:
            place = min(each.before for each in forced)
            forced += [each for each in policy.behind(place, old) if each.key not in gone]
        chosen += forced
        tokens -= sum(each.gain for each in forced)
        cut, saved = _cuts([each for each in free if each.is_new], tokens - rules.budget_tokens)
        tokens -= saved
    gone = {each.key for each in chosen}
    return Decision(
        reason=reason if gone or cut else None,
        remove=tuple(each.key for each in contents if each.key in gone),
        cut=cut,
        carried={key: number for key, number in requests.items() if key not in gone},
        tokens=tokens,
        over_by=0.0 if rules.budget_tokens is None else max(0.0, tokens - rules.budget_tokens),
    )


class _Policy:
    """The rules at the prices of one model."""

    def __init__(self, model: Model, lifetime_s: int, rules: Rules) -> None:
        self._read = model.cache_read
        self._rewrite = model.cache_write[lifetime_s] - model.cache_read
        self._worth = rules.worth_tokens * model.input

    def is_removable(self, content: Content, share: float = 1.0) -> bool:
        """True if ``content`` is outdated, or carrying it costs more than ``share`` of the worth of having it in the
        window."""
        return self._read * content.gain > share * self._worth * content.chance or content.is_outdated

    def place(self, removable: Sequence[Content], requests: Mapping[str, int], sent: float) -> float | None:
        """The first place at which breaking the window has become worth it, None without one."""
        found, cost, gain = None, 0.0, 0.0
        for each in reversed(removable):
            cost += self._read * each.gain * requests[each.key]
            gain += each.gain
            if cost >= self._rewrite * max(0.0, sent - each.before - gain):
                found = each.before
        return found

    def behind(self, place: float, contents: Iterable[Content]) -> list[Content]:
        """The contents that are removed when the window is broken at ``place``."""
        return [each for each in contents if each.before >= place and self.is_removable(each, _EAGER)]

    def forced(self, free: Sequence[Content], tokens: float, budget: int) -> list[Content]:
        """The contents to remove for the budget: outdated ones first, then those worth least per token; those of the
        running turn only if the others do not suffice."""
        found: list[Content] = []
        for running in (False, True):
            some = [each for each in free if each.is_running is running and not each.is_new]
            if tokens <= budget:
                break
            goal = tokens - sum(each.gain for each in some)
            goal += max(0.0, _REFILL * (budget - goal))
            for each in sorted(some, key=lambda each: (not each.is_outdated, each.chance / each.gain, each.before)):
                if tokens <= goal:
                    break
                found.append(each)
                tokens -= each.gain
        return found


def _cuts(new: Sequence[Content], over: float) -> tuple[dict[str, int], float]:
    """Cut the largest of ``new`` to one length, to save ``over`` tokens; return the lengths and the tokens saved, which
    are fewer if all have their shortest length."""
    if over <= 0 or not new:
        return {}, 0.0
    sizes = sorted((each.tokens for each in new), reverse=True)
    total, length = 0.0, 0.0
    for count, size in enumerate(sizes, 1):
        total += size
        length = (total - over) / count
        if count == len(sizes) or length >= sizes[count]:
            break
    length = max(CUT_TOKENS_MIN, int(length))
    cut = {each.key: length for each in new if each.tokens > length}
    return cut, sum(each.tokens - length for each in new if each.key in cut)
