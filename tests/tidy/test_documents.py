"""Documents: links and names of files lead somewhere, the architecture is that of the code, the README stays short."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.product import ROOT

DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {part for part in path.relative_to(ROOT).parts if part.startswith(".")} and "node_modules" not in path.parts
)
README_LINES_MAX = 150
GUIDES = [path for path in DOCUMENTS if path.name in ("README.md", "SSOT.md")]
FOLDERS = [ROOT, ROOT / "tests", ROOT / "ctxd", ROOT / "protocol" / "ctxd_protocol"]
"""Folders that a name in a guide may be relative to, besides the guide's own."""

SOURCES = tuple(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
SOURCE_FILE = re.compile(r"[\w./-]+\.(?:py|md|clj|sh)|[a-z_]+(?:/[a-z_]+)*/")


def heading_anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in heading_anchors(linked), target


def prose(path: Path) -> str:
    """The document without its blocks of code and its links."""
    return re.sub(r"```.*?```|\[[^\]]*\]\([^)]*\)", "", path.read_text(), flags=re.S)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_source_file_that_a_guide_names_exists(path: Path) -> None:
    lost = []
    for line in prose(path).splitlines():
        named = re.findall(r"`([^`]+)`", line)
        row = re.match(r"\| `([\w/]+/)` \|", line)
        # In a table, what follows a folder is in it.
        places = [ROOT / row[1]] if row else [path.parent, *FOLDERS]
        for name in named[1:] if row else named:
            is_source = SOURCE_FILE.fullmatch(name) or name.partition("/")[0] in SOURCES and "." in name
            if is_source and not any((at / name).exists() for at in places):
                lost.append(name)
        if row and not (ROOT / row[1]).is_dir():
            lost.append(row[1])
    assert lost == []


def test_the_readme_maps_every_part_whose_files_are_not_named_after_commands_or_formats() -> None:
    parts = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "ctxd").glob("*/__init__.py")}
    mapped = set(re.findall(r"^\| `([\w/]+)/` \|", (ROOT / "README.md").read_text(), re.M))
    assert parts - mapped == {"ctxd/commands", "ctxd/examples", "ctxd/observe", "ctxd/service"}


def test_the_figure_of_the_architecture_has_the_layers_of_the_import_contract() -> None:
    figure = (ROOT / "ctxd" / "README.md").read_text().split("```")[1]
    rows = [line.removeprefix("ctxd:").strip() for line in figure.partition("ctxd:")[2].splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [re.split(r"\s{2,}", row)[0] for row in rows if row] == contracts[0]["layers"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX
