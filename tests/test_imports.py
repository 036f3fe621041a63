"""Importing the package changes nothing of the process that imports it."""

import subprocess
import sys

CODE = """
import atexit, importlib, logging, os, pkgutil, signal, sys, warnings
# Libraries first: what they set up themselves is not ours.
import absl.logging, asyncio, flax, grain, jax, optax, orbax.checkpoint, pandas
import sacrebleu, sacremoses, sentencepiece

def state():
    names = [None, "absl", "asyncio", "transformer_jax", "experiments"]
    loggers = [logging.getLogger(name) for name in names]
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    hooks = [sys.excepthook, sys.unraisablehook, sys.stdout, sys.stderr, atexit._ncallbacks()]
    seen = [[logger.level, *logger.handlers, *logger.filters] for logger in loggers]
    return seen, signals, hooks, list(warnings.filters), dict(os.environ)

import transformer_jax
packages = [transformer_jax]
before = state()
for package in packages:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
assert len([name for name in sys.modules if name.startswith("transformer_jax.")]) > 60
after = state()
variables = {name for name, _ in set(before[-1].items()) ^ set(after[-1].items())}
assert not variables, variables
for was, now in zip(before[:-1], after[:-1]):
    assert was == now, (was, now)
"""


def test_importing_every_module_sets_up_no_logs_hooks_or_filters():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_command_imports_late_what_its_start_does_not_need():
    late = "jax.experimental.pallas", "orbax.checkpoint", "grain", "pandas"
    late += "jinja2", "scipy.stats"
    code = "import sys, transformer_jax.use.train, transformer_jax.commands.translate\n"
    code += f"print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
