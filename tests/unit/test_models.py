"""Table of models: the built-in one, an operator's changes to it, and what is refused."""

import json
import subprocess
import sys

import msgspec
import pytest

from ctxd.config import load
from ctxd.errors import CtxdError
from ctxd.models import ModelsRefused, read_models

NEW = """
provider = "openai"
context_tokens = 100
output_tokens_max = 10
input = 4
output = 5
cache_read = 2
cache_write = { 60 = 4 }
cache_min_tokens = 0
"""


def written(path, text):
    path.write_text(text)
    return path


def test_every_built_in_model_has_prices_that_make_its_cache_worthwhile():
    models = read_models()
    assert {models.get(name).provider for name in models.names()} == {"anthropic", "openai"}
    for name in models.names():
        model = models.get(name)
        assert 0 < model.cache_read < model.input <= min(model.cache_write.values()) < model.output, name
        assert model.lifetime_s == 300, name


@pytest.mark.requirement("OPS-4")
def test_an_operators_file_changes_fields_of_models_and_adds_models(tmp_path):
    text = f"[models.claude-sonnet-4-5]\ninput = 7\n[models.'own/model:1']{NEW}"
    models = read_models(written(tmp_path / "models.toml", text))
    before = read_models().get("claude-sonnet-4-5")
    assert models.get("claude-sonnet-4-5") == msgspec.structs.replace(before, input=7)
    assert models.get("own/model:1").cache_write == {60: 4}
    assert models.get("own/model:1").system_updates, "as all models of OpenAI"
    assert models.get("gpt-5") == read_models().get("gpt-5")


@pytest.mark.requirement("OPS-4")
def test_fields_that_earlier_versions_had_are_read_and_ignored(tmp_path):
    old = f"{NEW}cache_breakpoints = 0\ncache_lookback = 0\n"
    made = read_models(written(tmp_path / "old.toml", f"[models.mine]{old}")).get("mine")
    assert made == read_models(written(tmp_path / "new.toml", f"[models.mine]{NEW}")).get("mine")


@pytest.mark.parametrize("dated", ["claude-sonnet-4-5-20250929", "gpt-5-2025-08-07"])
def test_a_dated_name_is_the_model_without_the_date(dated, tmp_path):
    models = read_models()
    assert models.get(dated) == models.get(dated.replace("-20250929", "").replace("-2025-08-07", ""))
    own = read_models(written(tmp_path / "models.toml", f"[models.{dated}]{NEW}"))
    assert own.get(dated).input == 4


@pytest.mark.requirement("OPS-4")
def test_an_unknown_model_is_refused_with_the_known_ones_and_the_file(tmp_path):
    file = written(tmp_path / "models.toml", f"[models.mine]{NEW}")
    with pytest.raises(CtxdError, match=r"unknown model 'claude-9'; known models: claude-.*, gpt-5, .*mine") as caught:
        read_models(file).get("claude-9")
    assert caught.value.code == "invalid_params"
    assert str(file) in caught.value.hint
    with pytest.raises(CtxdError) as caught:
        read_models().get("")
    assert "models.toml" in caught.value.hint


@pytest.mark.requirement("OPS-4")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.gpt-5]\ninptu = 1", "model gpt-5: Object contains unknown field `inptu`"),
        ("[model.gpt-5]\ninput = 1", "unknown key 'model'"),
        ("models = 3", "not a table"),
        ("models.gpt-5 = 3", "not a table"),
        ("[models.gpt-5]\ninput = 1.5", "model gpt-5: Expected `int`, got `float`"),
        ("[models.gpt-5]\ninput = '1'", "model gpt-5: Expected `int`, got `str`"),
        ("[models.gpt-5]\ninput = -1", "model gpt-5: Expected `int` >= 0"),
        ("[models.gpt-5]\ncache_write = {}", "model gpt-5: Expected `object` of length >= 1"),
        ("[models.gpt-5]\ncache_write = { 5m = 1 }", "model gpt-5: Expected `int`, got `str`"),
        ("[models.gpt-5]\ncache_write = { 0 = 1 }", "model gpt-5: Expected `int` >= 1"),
        ("[models.gpt-5]\ncache_write = { 300 = 1 }", "cache_write.300 costs less than cache_read"),
        ("[models.gpt-5]\noutput_tokens_max = 400000", "leaves no token"),
        ("[models.mine]\ninput = 1", "model mine: Object missing required field"),
        ("[models", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_its_model_and_its_fault(tmp_path, text, message):
    file = written(tmp_path / "models.toml", text)
    with pytest.raises(ModelsRefused) as caught:
        read_models(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ModelsRefused, match="none.toml: cannot be read"):
        read_models(tmp_path / "none.toml")


def test_the_printed_table_is_a_file_that_gives_the_same_table(tmp_path):
    models = read_models(written(tmp_path / "models.toml", f"[models.'own/model:1']{NEW}"))
    again = read_models(written(tmp_path / "printed.toml", models.toml()))
    assert again.to_json() == models.to_json()


def test_the_file_beside_the_configuration_is_found(tmp_path):
    environ = {"HOME": str(tmp_path)}
    assert load({}, environ).models_file is None
    file = tmp_path / ".config" / "ctxd" / "models.toml"
    file.parent.mkdir(parents=True)
    file.touch()
    assert load({}, environ).models_file == file
    assert load({"models.file": "/other.toml"}, environ).models_file.as_posix() == "/other.toml"


def run(*words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "ctxd", *words], capture_output=True, text=True, timeout=60, env=environ or None
    )


@pytest.mark.requirement("OPS-4")
def test_the_table_in_force_is_printed(tmp_path):
    file = written(tmp_path / "models.toml", "[models.gpt-5]\ninput = 7\n")
    shown = run("config", "--models", "--json", CTXD_MODELS_FILE=str(file), HOME=str(tmp_path))
    assert json.loads(shown.stdout)["models"]["gpt-5"]["input"] == 7
    assert "input = 7\n" in run("config", "--models", CTXD_MODELS_FILE=str(file), HOME=str(tmp_path)).stdout


@pytest.mark.requirement("OPS-4")
def test_neither_the_command_nor_a_daemon_accepts_a_wrong_table(tmp_path):
    file = written(tmp_path / "models.toml", "[models.gpt-5]\ninptu = 7\n")
    environ = {"CTXD_MODELS_FILE": str(file), "HOME": str(tmp_path)}
    for words in (
        ["config", "--models"],
        ["run", "--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "c")],
    ):
        refused = run(*words, **environ)
        assert refused.returncode == 78
        assert f"{file}: model gpt-5: Object contains unknown field `inptu`" in refused.stderr
