"""``ctxd config``: the settings in force, and a sample configuration file generated from their declarations."""

import json
from pathlib import Path

import click

from ctxd.click_support import ExclusiveOptions
from ctxd.commands.command_support import config_option, json_option, show
from ctxd.config import SETTINGS, ConfigError, Setting, load
from ctxd.models import ModelsRefused, read_models

_COLUMNS = 100


@click.command()
@click.option("--sample", is_flag=True, help="Print a configuration file that explains every setting.")
@click.option("--models", is_flag=True, help="Print the table of models: prices, prompt caches and limits.")
@json_option
@config_option
def config(sample: bool, models: bool, as_json: bool, config: Path | None) -> None:
    """Show every setting, its value and its origin, or print a sample configuration file, or the table of models.

    A model in ~/.config/ctxd/models.toml, or in the file of the setting models.file, changes or extends the table.

    \b
    Examples:
      ctxd config
      ctxd config --sample > ~/.config/ctxd/ctxd.toml
      ctxd config --models
    """
    if sample and models:
        raise ExclusiveOptions("--sample", "--models")
    if sample:
        text = sample_file()
        show(as_json, {"sample": text}, text.rstrip("\n"))
        return
    settings = load(file=config)
    if models:
        try:
            table = read_models(settings.models_file)
        except ModelsRefused as refused:
            raise ConfigError(str(refused)) from None
        show(as_json, {"models": table.to_json()}, table.toml().rstrip("\n"))
        return
    rows = list(settings.items())
    width = max(len(key) for key, _, _ in rows)
    lines = [f"{key:<{width}}  {value or '(none)'}  [{origin}]" for key, value, origin in rows]
    items = [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]
    show(as_json, {"items": items}, "\n".join(lines))


def sample_file() -> str:
    """Return a TOML file that explains every setting, each commented out with its default."""
    lines = [
        "# Settings of ctxd. Uncomment those to change. A flag wins over the environment variable, which wins over",
        "# the user's file (~/.config/ctxd/ctxd.toml), which wins over the system's (/etc/ctxd/ctxd.toml).",
    ]
    table = ""
    for setting in SETTINGS:
        section, _, key = setting.key.rpartition(".")
        if section != table:
            table = section
            lines += ["", f"[{section}]"]
        derived = '"…"  # derived from the environment'
        default = derived if setting.default is None else json.dumps(setting.default, ensure_ascii=False)
        lines += ["", *_explained(setting), f"# {key} = {default}"]
    return "\n".join(lines) + "\n"


def _explained(setting: Setting) -> list[str]:
    sentence = f"{setting.meaning[0].upper()}{setting.meaning[1:]}. Allowed: {setting.allowed}. {setting.variable}."
    lines, line = [], "#"
    for word in sentence.split():
        if len(line) + 1 + len(word) > _COLUMNS:
            lines.append(line)
            line = "#"
        line += f" {word}"
    return [*lines, line]
