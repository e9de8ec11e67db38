"""Manual pages in troff, generated from a program's commands and their help."""

import inspect

import click


def manual(program: click.Group, name: str, version: str) -> str:
    """Return the page of ``program``: its description, and every command with its options."""
    context = click.Context(program, info_name=name)
    summary = program.get_short_help_str(100).rstrip(".")
    lines = [
        f'.TH "{name.upper()}" "1" "" "ctxd {version}" "User Commands"',
        ".SH NAME",
        _plain(f"{name} - {summary[:1].lower()}{summary[1:]}"),
        ".SH SYNOPSIS",
        f".B {name}",
        _plain("[OPTIONS] COMMAND [ARGS]..."),
        ".SH DESCRIPTION",
        *_text(program),
        ".SH OPTIONS",
        *_options(program, context),
        ".SH COMMANDS",
        *_commands(program, context),
    ]
    return "\n".join(lines) + "\n"


def _commands(group: click.Group, context: click.Context) -> list[str]:
    lines: list[str] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        lines += [".SS " + _plain(f"{inner.command_path} {usage}"), *_text(command), *_options(command, inner)]
        if isinstance(command, click.Group):
            lines += _commands(command, inner)
    return lines


def _text(command: click.Command) -> list[str]:
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").replace("\f", "").split("\n\n"):
        verbatim = paragraph.lstrip().startswith("\b")
        body = [_plain(line) for line in paragraph.replace("\b", "").strip("\n").split("\n") if line.strip()]
        lines += [".PP", *([".nf", *body, ".fi"] if verbatim else body)]
    examples = getattr(command, "examples", "")
    if examples:
        lines += [".PP", "Examples:", ".nf", *(_plain(f"  {line}") for line in examples.strip().splitlines()), ".fi"]
    return lines


def _options(command: click.Command, context: click.Context) -> list[str]:
    lines: list[str] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", _plain(record[0]), _plain(record[1])]
    return lines


def _plain(text: str) -> str:
    """Escape characters that troff interprets: backslashes, hyphens, and a control character at the start of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
