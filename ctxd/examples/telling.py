"""How the demonstration is told: in colour on a terminal, plainly in a pipe. Owns no story and calls no daemon."""

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ctxd_protocol.context import AssembledContext, Block

COLOURS: Final = {"system_prompt": "magenta", "metadata_pool": "blue", "chat": "green", "active_content": "yellow"}
SIGNS: Final = {"system_prompt": "s", "metadata_pool": "m", "chat": "c", "active_content": "a"}
"""What a section looks like in the bar where there are no colours."""

BAR_CELLS: Final = 72
LABEL_CELLS: Final = 56
PLAIN_CELLS: Final = 100
"""Width of the output where there is no terminal to ask."""


class Teller:
    """Tells scenes, and keeps count of what did not hold."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=PLAIN_CELLS)
        self.failed = 0
        self._held = 0

    def scene(self, title: str, text: str = "") -> None:
        """Begin a scene."""
        self._console.print()
        self._console.print(Text(f"== {title}", style="bold"))
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """One line of the story."""
        self._console.print(Text(f"   {text}"), soft_wrap=True)

    def holds(self, what: str, true: bool, evidence: str = "") -> None:
        """Tell a claim and whether it holds."""
        self.failed += not true
        self._held += true
        mark = Text(" ok  ", style="green") if true else Text("FAIL ", style="bold red")
        self._console.print(mark + Text(what) + Text(f"  {evidence}", style="dim"), soft_wrap=True)

    def context(self, title: str, context: AssembledContext) -> None:
        """A context to scale, and its blocks with the reason for each."""
        total = f"{context.tokens:,} tokens, {context.bytes:,} bytes, {context.context_id}"
        self.say(f"{title}: {total}")
        self._console.print(Text("   ") + _bar(context))
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.add_column("section", no_wrap=True)
        table.add_column("what", no_wrap=True, max_width=LABEL_CELLS)
        table.add_column("reason", no_wrap=True)
        table.add_column("tokens", justify="right", no_wrap=True)
        lines = _pool_lines(context)
        for block in context.blocks:
            section = Text(block.section, style=COLOURS[block.section])
            table.add_row(section, Text(_label(block, lines)), block.reason, f"{block.tokens:,}")
        self._console.print(table)

    def compare(self, before: AssembledContext, after: AssembledContext, seconds: float) -> None:
        """Two assemblies, hash beneath hash."""
        self.say(f"before the kill  sha256 {before.sha256}  {before.bytes:,} bytes")
        self.say(f"after it         sha256 {after.sha256}  {after.bytes:,} bytes, {seconds:.2f} s later")

    def end(self, seconds: float) -> None:
        """The last line."""
        self._console.print()
        verdict = f"{self._held} claims held" + (f", {self.failed} did not" if self.failed else "")
        self._console.print(Text(f"{verdict}; {seconds:.1f} s", style="bold red" if self.failed else "bold green"))


def _bar(context: AssembledContext) -> Text:
    bar = Text()
    whole = max(1, sum(section.tokens for section in context.sections))
    for section in context.sections:
        cells = round(BAR_CELLS * section.tokens / whole)
        if section.tokens:
            bar.append(SIGNS[section.section] * max(1, cells), style=f"black on {COLOURS[section.section]}")
    return bar


def _pool_lines(context: AssembledContext) -> dict[str, str]:
    """What the metadata pool says of each object, by id."""
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
