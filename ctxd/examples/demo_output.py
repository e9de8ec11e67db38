"""Output of the demonstration: in colour on a terminal, plain in a pipe."""

import os
import shutil
import sys
from typing import Final

from ctxd_protocol.context_types import AssembledContext, Block

COLOURS: Final = {"system_prompt": "45", "metadata_pool": "44", "chat": "42", "active_content": "43"}
"""Background colour of a section in the bar, as an ANSI code; ``OTHER`` for sections that are not listed."""

OTHER: Final = "46"

SIGNS: Final = {"system_prompt": "s", "metadata_pool": "m", "chat": "c", "active_content": "a"}
"""Letter of a section in the bar without colours; for sections that are not listed, their first letter."""

BAR_CELLS: Final = 72
LABEL_CELLS: Final = 56
PLAIN_CELLS: Final = 100
"""Width of the output without a terminal."""

_BOLD, _DIM, _RED, _GREEN, _BLACK = "1", "2", "31", "32", "30"


class Teller:
    """Prints scenes, and counts failed claims."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._cells = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_CELLS
        self.failed = 0
        self._held = 0

    def scene(self, title: str, text: str = "") -> None:
        """Begin a scene."""
        print(f"\n{self._paint(f'== {title}', _BOLD)}")
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """Print one line of the story."""
        print(f"   {text}")

    def holds(self, what: str, true: bool, evidence: str = "") -> None:
        """Print a claim and its result."""
        self.failed += not true
        self._held += true
        mark = self._paint(" ok ", _GREEN) if true else self._paint("FAIL", _BOLD, _RED)
        print(f"{mark} {what}  {self._paint(evidence, _DIM)}")

    def context(self, title: str, context: AssembledContext) -> None:
        """Print a context as a bar to scale, and its blocks with the reason for each."""
        self.say(f"{title}: {context.tokens:,} tokens, {context.bytes:,} bytes, {context.context_id}")
        self.say(self._bar(context))
        lines = _pool_lines(context)
        rows = [("section", "what", "reason", "tokens")]
        rows += [(block.section, _label(block, lines), block.reason, f"{block.tokens:,}") for block in context.blocks]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        widths[1] = min(widths[1], LABEL_CELLS, max(1, self._cells - sum(widths) + widths[1] - 6))
        for number, row in enumerate(rows):
            cells = [
                text.ljust(width) if len(text) <= width else text[: width - 1] + "…"
                for text, width in zip(row[:3], widths, strict=False)
            ]
            line = "  ".join((*cells, row[3].rjust(widths[3])))
            print(self._paint(line, _BOLD) if number == 0 else line)

    def compare(self, before: AssembledContext, after: AssembledContext, seconds: float) -> None:
        """Print two assemblies, one hash below the other."""
        self.say(f"before the kill  sha256 {before.sha256}  {before.bytes:,} bytes")
        self.say(f"after it         sha256 {after.sha256}  {after.bytes:,} bytes, {seconds:.2f} s later")

    def end(self, seconds: float) -> None:
        """Print the last line."""
        verdict = f"{self._held} claims held" + (f", {self.failed} did not" if self.failed else "")
        print(f"\n{self._paint(f'{verdict}; {seconds:.1f} s', _BOLD, _RED if self.failed else _GREEN)}")

    def _paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._colour and text else text

    def _bar(self, context: AssembledContext) -> str:
        whole = max(1, sum(section.tokens for section in context.sections))
        return "".join(
            self._paint(
                SIGNS.get(each.section, each.section[:1]) * max(1, round(BAR_CELLS * each.tokens / whole)),
                _BLACK,
                COLOURS.get(each.section, OTHER),
            )
            for each in context.sections
            if each.tokens
        )


def _pool_lines(context: AssembledContext) -> dict[str, str]:
    """Return the metadata pool's line of each object by id."""
    pool = [block.text.splitlines()[1:] for block in context.blocks if block.section == "metadata_pool"]
    split = [line.removeprefix("id=").partition(" ") for lines in pool for line in lines]
    return {id: rest for id, _, rest in split}


def _label(block: Block, lines: dict[str, str]) -> str:
    if block.section == "metadata_pool":
        return f"{len(lines)} objects, one line each"
    if block.section == "active_content" and block.object in lines:
        return lines[block.object].removeprefix("type=")
    first, _, rest = block.text.partition("\n")
    return rest.partition("\n")[0] if first.startswith("CHAT_MESSAGE") else first
