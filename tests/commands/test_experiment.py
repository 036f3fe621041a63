"""The `experiment` command, in a folder without a checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.commands.experiment import experiment, find_module
from transformer_jax.errors import ConfigError

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path):
    def run(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a module in an empty folder; `path` comes before the checkout."""
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}"},
        )

    return run


COMMAND = ("transformer_jax", "experiment")


def test_installed_experiments_are_listed_and_run(run):
    listed = run(*COMMAND).stdout.splitlines()
    assert any(line.startswith("transformer-jax experiment sweep  ") for line in listed)
    arguments = ["--config=demo", "--config.model.num_heads=2,4", "--rows=num_heads=4", "--print"]
    done = run(*COMMAND, "sweep", *arguments)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 3), done.stderr
    assert "train --config=demo --workdir=runs/sweep/demo_num_heads/num_heads=4/seed-0" in lines[1]


@pytest.mark.slow("starts processes")
def test_the_readme_s_experiment_is_listed_and_explained(run, tmp_path):
    """It has neither a guard nor a text of its own for --help."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    [code] = [one for one in CODE.findall((ROOT / "README.md").read_text()) if "mine.py" in one]
    (tmp_path / "experiments" / "mine.py").write_text(code)
    (tmp_path / "experiments" / "broken.py").write_text("def (:\n")
    listed = run("experiments", path=tmp_path).stdout
    assert re.search(r"^python -m experiments\.mine +experiments/mine\.py$", listed, re.M)
    assert re.search(r"broken\.py is not Python yet: ", listed)
    explained = run("experiments.mine", "--help", path=tmp_path).stdout
    assert explained.startswith("experiments/mine.py\n")


def test_an_experiment_of_one_s_own_comes_first_and_its_status_is_the_command_s(run, tmp_path):
    (tmp_path / "experiments").mkdir()
    code = "import sys; print(__name__, sys.argv[1:]); sys.exit(3)"
    (tmp_path / "experiments" / "demo.py").write_text(code)
    done = run(*COMMAND, "demo", "--help", "--x=1")
    assert (done.returncode, done.stdout) == (3, "__main__ ['--help', '--x=1']\n")
    (tmp_path / "experiments" / "of_grammar.py").write_text("import grammar.that_is_elsewhere")
    done = run(*COMMAND, "of_grammar")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "experiment of_grammar needs the folder grammar of a checkout" in done.stderr
    for name in ("nowhere", "__init__", "judging"):  # the last one is shared by others
        done = run(*COMMAND, name)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"there is no experiment '{name}'" in done.stderr


def test_a_name_is_a_module_or_package_of_the_folder_itself():
    folder = ROOT / "experiments"
    assert find_module(folder, "sweep") == folder / "sweep.py"
    assert find_module(folder, "claims") == folder / "claims" / "__main__.py"
    assert find_module(folder, "../configs/demo") is None


def test_a_module_that_experiments_share_is_none_in_a_checkout_either(in_checkout):
    with pytest.raises(ConfigError, match="there is no experiment 'table1_report'"):
        experiment("table1_report")
