"""Config files, overrides on the command line, and the presets of configs/."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from ml_collections import ConfigDict, config_flags

from tests.fixtures.cases import refused
from transformer_jax.config import files
from transformer_jax.config.changes import with_values
from transformer_jax.config.files import load_config, shipped, split_overrides
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.config.serialization import from_config_dict, to_config_dict
from transformer_jax.errors import ConfigError

ROOT = Path(__file__).parents[2]
PRESETS = sorted(f"configs/{path.name}" for path in (ROOT / "configs").glob("*.py"))

# Overrides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEYS)
def test_every_key_can_be_overridden(name):
    key = KEYS[name]
    text, value = {
        int: ("16", 16),
        float: ("0.25", 0.25),
        bool: ("false", False),
        str: ("word", "word"),
        tuple: ("('a', 'b')", ("a", "b")),
    }[key.kind]
    _, overrides = split_overrides([f"--config.{name}={text}"])
    assert overrides == {name: value}
    assert value_at(with_values(Config(), overrides), name) == value
    if key.optional:
        _, overrides = split_overrides([f"--config.{name}={text}", f"--config.{name}=none"])
        assert overrides == {name: None}


def test_every_key_can_be_overridden_through_ml_collections_too(in_checkout):
    from absl import flags

    arguments = ["", "--config=configs/wmt14.py:big", "--config.model.d_k=16", "--config.seed=3"]
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=arguments)
    values(arguments)
    config = from_config_dict(holder.value)
    assert (config.model.d_k, config.seed, config.model.d_model) == (16, 3, 1024)


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        (["--config.train.remat"], {"train.remat": True}),
        (["--noconfig.model.tie_embeddings"], {"model.tie_embeddings": False}),
        (["-config.seed", "3"], {"seed": 3}),
        (["--config.data.path=a=b:c"], {"data.path": "a=b:c"}),
        (["--config.data.path="], {"data.path": ""}),
        (["--config.model.positions=none"], {"model.positions": "none"}),  # a choice, not "unset"
        (["--config.data.train=a", "--config.data.train=b"], {"data.train": ("a", "b")}),
        (["--config.data.train=a,b", "--config.data.train=c"], {"data.train": ("a", "b", "c")}),
        (["--config.data.valid="], {"data.valid": ()}),
        (["--config.data.train=MyCorpus v2"], {"data.train": ("MyCorpus v2",)}),
        (["--config.data.train=MyCorpus v2, b"], {"data.train": ("MyCorpus v2", "b")}),
        (["--config.data.train=('v,2',)"], {"data.train": ("v,2",)}),  # `check` refuses the comma
        (["--config.data.train=2013"], {"data.train": ("2013",)}),
        (["--config.data.valid=()"], {"data.valid": ()}),
        (["--config.seed=1", "--config.seed=2"], {"seed": 2}),
        (["--config.model.d_k=None"], {"model.d_k": None}),
        (["--config.data.train=['a', 'b c']"], {"data.train": ("a", "b c")}),
        (["--config.model.d_k=none", "--config.model.d_k=8"], {"model.d_k": 8}),
    ],
)
def test_forms_of_an_override(arguments, overrides):
    assert split_overrides(["--x=1", *arguments, "y"]) == (["--x=1", "y"], overrides)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.model.d_k=abc", "--config.model.d_k=abc: expected int or none."),
        ("--config.model.d_model=none", "--config.model.d_model=none: expected int."),
        ("--config.model.d_model=1e3", "--config.model.d_model=1e3: expected int."),
        ("--config.model.num_heads=2,4", "expected int. A run for each of several values: python"),
        ("--config.model.dropout=much", "--config.model.dropout=much: expected float."),
        ("--config.train.remat=maybe", "--config.train.remat=maybe: expected true or false."),
        ("--config.data.train=('a',", "expected a list, such as a,b or ('a','b')."),
        ("--config.seed", "--config.seed needs a value: --config.seed=VALUE."),
        ("--noconfig.seed", "--noconfig.seed: --noconfig.KEY works for true-or-false keys only."),
        ("--config.trian=3", "trian is not a key of the config. Did you mean train?"),
        ("--config.model=3", "model is a section of the config. Name a key in it: model.encoder"),
    ],
)
def test_an_invalid_override_is_one_clear_line(argument, words):
    with refused(ConfigError, words):
        split_overrides([argument])


# Config files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if "finetune" not in preset])
def test_every_preset_loads_and_differs_from_the_defaults(preset, in_checkout):
    text = {} if "demo" in preset else {"data.path": "somewhere"}
    assert load_config(preset, text) != with_values(Config(), text)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_says_paper_device_and_command(preset):
    docstring = (ROOT / preset).read_text().split('"""')[1]
    command = "python -m transformer_jax train --config=" + preset
    for word in ("Paper: ", "Expected", "Device: ", command):
        assert word in docstring, word


def test_a_key_of_search_waits_for_another_one_of_search_and_for_nothing_else(in_checkout):
    """A later command may ask for decode.method=sample, but never for model.wait_k."""
    assert load_config("configs/demo.py", {"decode.temperature": 0.5}).decode.temperature == 0.5
    with pytest.raises(ConfigError, match="decode.wait_k=3 changes nothing here. Set model.wait_k"):
        load_config("configs/demo.py", {"decode.wait_k": 3})


def test_multi30k_takes_its_folder_from_the_environment(in_checkout, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", "somewhere")
    assert load_config("configs/multi30k.py").data.path == "somewhere/multi30k"
    monkeypatch.delenv("TRANSFORMER_JAX_DATA")
    assert load_config("configs/multi30k.py").data.path == "data/multi30k"


def test_arguments_of_wmt14_come_in_any_order_and_are_base_and_en_de_at_first(in_checkout):
    """tests/test_wmt14.py has what they give."""
    base = load_config("configs/wmt14.py")
    assert base == load_config("configs/wmt14.py:en-de,base")
    assert base.data.valid == ("validation",)
    assert load_config("configs/wmt14.py:en-fr,big") == load_config("configs/wmt14.py:big,en-fr")


@pytest.mark.parametrize(
    "argument", ["huge", "big,base", "en-de,en-fr", "big,,en-de", "big;en-de", ""]
)
def test_an_invalid_argument_of_wmt14_lists_the_choices(argument, in_checkout):
    choices = "valid choices are one of base, big and one of en-de, en-fr"
    with pytest.raises(ConfigError, match=f"^configs/wmt14.py:{argument}: {choices}"):
        load_config(f"configs/wmt14.py:{argument}")


DEFAULT = "from transformer_jax.config.serialization import default_config_dict as default\n"
ODD = "class Odd(BaseException):\n    def __str__(self): raise ValueError\n"


@pytest.fixture
def written(tmp_path):
    """Writes a config file of this content; its name."""

    def write(content: str) -> str:
        (tmp_path / "preset.py").write_text(content)
        return str(tmp_path / "preset.py")

    return write


@pytest.mark.parametrize(
    ("content", "argument", "words"),
    [
        ("def get_config(): return 1 +", "", r"preset.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\0", "", r"preset.py: (Syntax|Value)Error: .*null bytes"),
        ("raise SystemExit('bye')", "", r"preset.py, line 1: SystemExit: bye"),
        ("x = 1\ny = x / 0", "", r"preset.py, line 2: ZeroDivisionError: division by zero"),
        ("def f(): return 1 / 0\ndef get_config(): return f()", "", r"preset.py, line 1: Zero"),
        ("def get_config(): raise GeneratorExit('out')", "", "GeneratorExit: out"),
        (ODD + "def get_config(): raise Odd()", "", "Odd: .its text cannot be printed"),
        ("import nowhere_at_all", "", r"preset.py, line 1: ModuleNotFoundError: .*nowhere_at_all"),
        ("x = 1", "", r"preset.py has no function get_config"),
        ("def get_config(): return None", "", r"get_config returned NoneType, not a ConfigDict"),
        ("def get_config(): return {}", ":big", r"takes no argument: --config=.*preset.py\.$"),
        ("def get_config(size): return {}", "", r"needs one argument: .*preset.py:ARGUMENT"),
        ("def get_config(*, size): return {}", "", r"is get_config\(\*, size\), and can get only"),
        ("def get_config(): return {'modle': 1}", "", r"modle is not a key.*mean model|Known keys"),
        ("def get_config(): return {'model': {'d_model': 7}}", "", r"model.d_model=7 is not div"),
        ("def get_config(): return {'train': {'steps': 10**5000}}", "", "Error: Exceeds the limit"),
        (
            DEFAULT + "def get_config():\n    config = default()\n    config.model.d_modle = 3\n"
            "    return config",
            "",
            "model.d_modle is not a key.*Did you mean model.d_model",
        ),
    ],
)
def test_a_config_file_that_fails_is_one_clear_line(content, argument, words, written):
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(f"{written(content)}{argument}")
    assert "\n" not in str(caught.value)


def test_a_config_file_may_demand_values_and_references_follow_what_is_given(written):
    lines = [
        "from ml_collections import config_dict",
        DEFAULT,
        "def get_config():",
        "    config = default()",
        "    config.data.path = 'text'",
        "    config.seed = config_dict.required_placeholder(int)",
        "    config.train.warmup_steps = config.train.get_ref('steps') // 10",
        "    config.model.d_ff = config_dict.required_placeholder(int)",
        "    config.model.d_hidden = config.model.get_ref('d_ff') * 2",
        "    return config",
    ]
    file = written("\n".join(lines))
    for given, asked in (({}, "seed"), ({"seed": 4}, "model.d_ff")):
        with pytest.raises(ConfigError, match=f"asks for a value: add --config.{asked}=VALUE"):
            load_config(file, {"train.steps": 500, **given})
    given = {"seed": 4, "model.d_ff": 64, "model.encoder": "recurrent", "train.steps": 500}
    config = load_config(file, given)
    assert (config.seed, config.train.steps, config.train.warmup_steps) == (4, 500, 50)
    assert (config.model.d_ff, config.model.d_hidden) == (64, 128)
    assert load_config(file, {**given, "train.warmup_steps": 7}).train.warmup_steps == 7


@pytest.mark.parametrize("name", ["configs/demo.py", "configs/demo", "demo.py", "demo"])
def test_away_from_a_checkout_presets_are_known_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(str(ROOT / "configs" / "demo.py"))
    assert load_config("wmt14:big").train.steps == 300_000
    own = tmp_path / "configs" / "demo.py"
    own.parent.mkdir()
    own.write_text("def get_config(): return {'data': {'source': 'grammar'}, 'seed': 9}")
    assert load_config("configs/demo.py").seed == 9, "a file comes before the preset"


def test_away_from_a_checkout_a_config_file_can_change_a_preset(tmp_path, monkeypatch, written):
    monkeypatch.chdir(tmp_path)
    checkout = str(shipped("configs").parent)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", checkout)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "configs"]:
        monkeypatch.delitem(sys.modules, name)
    before = list(sys.path)
    body = "def get_config():\n    config = demo()\n    config.seed = 7\n    return config\n"
    file = written("from configs.demo import get_config as demo\n\n" + body)
    assert load_config(file).seed == 7
    assert load_config(file, {"seed": 0}) == load_config("demo")
    assert sys.path == before


PRESET_NAMES = "demo, europarl, finetune, mixed, multi30k, multi30k_fast, text, wmt14"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("configs/dmeo.py", "no such file. Did you mean configs/demo.py"),
        ("mien.py", "mien.py: there is no such file. Did you mean mine.py"),
        ("zzz", f"no such file. Presets: {PRESET_NAMES}."),
        ("elsewhere/demo.py", "elsewhere/demo.py: there is no such file"),
        (".", "--config=. is not a file. Name a file in it"),
    ],
)
def test_a_config_file_that_is_not_there_names_the_nearest_or_all_presets(
    name, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    with pytest.raises(ConfigError, match=words):
        load_config(name)


def test_a_partial_config_file_is_a_diff_against_the_defaults(written):
    file = written("def get_config(): return {'data': {'source': 'grammar'}}")
    assert load_config(file) == with_values(Config(), {"data.source": "grammar"})
    config = load_config(file, {"model.d_k": 16, "data.max_length": 7})
    assert (config.model.d_k, config.data.max_length) == (16, 7)
    assert isinstance(to_config_dict(config), ConfigDict)


def test_a_file_that_prints_and_changes_the_folder_does_neither_to_the_command(
    tmp_path, monkeypatch, capsys, written
):
    """Otherwise --print_config would not be JSON, and a relative --workdir another folder.

    No bytecode is written beside it, whatever PYTHONDONTWRITEBYTECODE says.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "elsewhere").mkdir()
    lines = ["import os", "def get_config():", "    os.chdir('elsewhere')", "    print('ready')"]
    written("\n".join([*lines, "    return {'seed': 3, 'data': {'path': 'corpus'}}"]))
    assert load_config("preset.py").seed == 3
    assert Path.cwd() == tmp_path
    assert capsys.readouterr() == ("", "ready\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "preset.py"]


def test_a_colon_of_a_folder_s_name_separates_no_argument(tmp_path):
    (tmp_path / "a:b").mkdir()
    source = "def get_config(): return {'seed': 4, 'data': {'path': 'corpus'}}"
    (tmp_path / "a:b" / "own.py").write_text(source)
    assert load_config(f"{tmp_path}/a:b/own.py").seed == 4


def test_files_that_threads_load_leave_standard_output_and_the_folder_as_they_are(tmp_path):
    """One that is loaded while another is must not take its redirection for the real output."""
    code = "import os, time\n{}\ndef get_config():\n    return {{}}\n"
    change = f"os.chdir({str(tmp_path)!r}); time.sleep(0.1)"
    for name, body in (("slow", change), ("slower", f"{change}; time.sleep(0.1)")):
        (tmp_path / f"{name}.py").write_text(code.format(body))
    before = sys.stdout, os.getcwd()
    threads = [
        threading.Thread(target=files._call_get_config, args=(str(tmp_path / f"{name}.py"),))
        for name in ("slow", "slower")
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert (sys.stdout, os.getcwd()) == before
