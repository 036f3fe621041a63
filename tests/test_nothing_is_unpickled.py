"""A run's folder is data: whatever its files hold, no command unpickles or executes any of it."""

import _pickle
import contextlib
import io
import itertools
import json
import marshal
import multiprocessing.queues
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.runs.checkpoints import write_manifest

pytestmark = [
    pytest.mark.slow("each test goes through commands in processes of their own"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Orbax's
]

ROOT = Path(__file__).parent.parent
READ = {"config.json", "corpus.sha256", "vocabulary.model", "run.sha256.json", "metrics.jsonl"}
READ |= {"40.sha256.json"}
# Of tensorboardX, whose queue to a thread of its own pickles events; and of imports of .pyc files.
HARMLESS = {
    "pickle.find_class": multiprocessing.queues.__file__,
    "marshal.load": "",
    "marshal.loads": "<frozen importlib._bootstrap_external>",
}


def use(run: Path, *commands: str) -> list[int]:
    """The exit status of commands, by default all that read a run; 1 if a command raises."""
    flags = {
        "train": [],
        "average": ["--last=2"],
        "translate": ["--beam_size=1"],
        "evaluate": ["--beam_size=1", "--checkpoint=best"],
        "attention": ["A dog.", "--checkpoint=average", f"--output={run.parent}/heat.png"],
    }
    statuses = []
    for command in commands or flags:
        given = SimpleNamespace(buffer=io.BytesIO(b"A dog.\n"))
        with mock.patch.object(sys, "stdin", given):
            try:
                if command == "train":
                    status = runs.train(run, train__steps=41)
                else:
                    status = runs.command(command, f"--workdir={run}", *flags[command])
            except Exception:
                status = 1
        statuses.append(status)
    return statuses


# Watched -----------------------------------------------------------------------------------------


class Watch:
    """Records what this process unpickles and executes from now on; it cannot be stopped."""

    def __init__(self, folder: Path):
        self.folder = str(folder)
        self.seen = list[str]()
        self.opened = set[str]()
        self._watch_unpickling()
        sys.addaudithook(self._hook)

    def _watch_unpickling(self) -> None:
        modules: tuple[Any, ...] = (pickle, _pickle)
        for module in modules:
            for name in ("load", "loads"):
                setattr(module, name, self._noted(name, getattr(module, name)))
            load = self._noted("Unpickler.load", module.Unpickler.load)
            module.Unpickler = type("Unpickler", (module.Unpickler,), {"load": load})

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.seen.append(f"{name} in {sys._getframe(1).f_code.co_filename}")
            return function(*arguments, **keywords)

        return call

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else ""
            if path.startswith(self.folder):
                self.opened.add(os.path.basename(path))
        elif event in ("pickle.find_class", "marshal.load", "marshal.loads"):
            caller = sys._getframe(1).f_code.co_filename
            if caller != HARMLESS[event]:
                self.seen.append(f"{event} in {caller}")
        elif event in ("compile", "exec", "import", "ctypes.dlopen"):
            named = [getattr(argument, "co_filename", argument) for argument in arguments[:2]]
            if any(isinstance(name, str) and name.startswith(self.folder) for name in named):
                self.seen.append(f"{event} {named}")


def use_while_watched(folder: str) -> None:
    """Every command that reads a run's folder, then what must be seen; printed as JSON."""
    watch = Watch(Path(folder))
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        statuses = use(Path(folder) / "run")
    found = watch.seen
    watch.seen = []
    pickle.loads(pickle.dumps(OrderedDict()))
    pickle.Unpickler(io.BytesIO(pickle.dumps([]))).load()
    _pickle.loads(pickle.dumps([]))
    marshal.loads(marshal.dumps([]))
    exec(compile("", f"{folder}/run/code.py", "exec"))
    report = {"statuses": statuses, "found": found, "control": watch.seen}
    print(json.dumps({**report, "opened": sorted(watch.opened)}))


def test_no_command_unpickles_while_it_uses_a_run(tmp_path):
    runs.copy_of_run(tmp_path / "run")
    program = f"from {__name__} import use_while_watched as use; use({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["statuses"] == [0] * 5, done.stderr
    assert set(report["opened"]) >= READ
    kinds = " ".join(line.split()[0] for line in report["control"])
    assert kinds == "loads pickle.find_class Unpickler.load loads marshal.loads compile exec"
    assert report["found"] == []


# Traps -------------------------------------------------------------------------------------------


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.marker,)


def traps(marker: Path) -> list[bytes]:
    """A pickle as text, one as bytes, and an array of objects."""
    array = io.BytesIO()
    np.save(array, np.array([Trap(marker)], dtype=object), allow_pickle=True)
    return [pickle.dumps(Trap(marker), protocol) for protocol in (0, 5)] + [array.getvalue()]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def test_a_trap_springs_when_it_is_unpickled(marker):
    *pickles, array = traps(marker)
    for content in pickles:
        pickle.loads(content)
        marker.rmdir()
    np.load(io.BytesIO(array), allow_pickle=True)
    marker.rmdir()


@pytest.mark.parametrize(
    "name", ["run.sha256.json", "config.json", "corpus.sha256", "vocabulary.model"]
)
def test_a_pickle_in_place_of_a_small_file_is_not_loaded(name, tmp_path, marker):
    run = runs.copy_of_run(tmp_path / "run")
    (run / "run.sha256.json").unlink()  # as who sets a trap would
    for content in traps(marker):
        (run / name).write_bytes(content)
        use(run)
        assert not marker.exists()


def test_pickles_in_place_of_a_checkpoint_s_files_are_not_loaded(tmp_path, marker):
    run = runs.copy_of_run(tmp_path / "run")
    checkpoint = run / "checkpoints" / "40"
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    assert len(files) > 10
    contents = itertools.cycle(traps(marker))
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(next(contents))
        write_manifest(checkpoint)  # as who sets a trap would
        use(run, "translate")
        assert not marker.exists(), path
        path.write_bytes(whole)
    for path in files:
        path.write_bytes(traps(marker)[0])
    write_manifest(checkpoint)
    use(run)
    assert not marker.exists()


# Orbax reads a file `checkpoint` in place of its own, but not as a pickle: nothing is restored.
@pytest.mark.parametrize(
    ("names", "is_used"),
    [(["params.pkl", "data.pickle", "model.pt", "arrays.npy"], True), (["checkpoint"], False)],
)
def test_pickles_beside_a_run_s_files_are_not_loaded(names, is_used, tmp_path, marker):
    run = runs.copy_of_run(tmp_path / "run")
    content = traps(marker)[1]
    code = f"import os; os.mkdir({str(marker)!r})\n"
    folders = [run, *(path for path in run.rglob("*") if path.is_dir())]
    for folder in folders:
        for name in names:
            (folder / name).write_bytes(content)
        for name in ("__init__.py", "numpy.py", "sitecustomize.py", "config.py", "get_config.py"):
            (folder / name).write_text(code)
    for step in (30, 35, 40):
        write_manifest(run / "checkpoints" / str(step))  # as who sets a trap would
    assert [status == 0 for status in use(run)] == [is_used] * 5
    assert not marker.exists()
    (run / "metrics.jsonl").write_bytes(content)
    use(run, "train")
    assert not marker.exists()


def test_an_encoded_corpus_of_objects_is_not_loaded(tmp_path, marker):
    from transformer_jax.text.encoded import ARRAYS, _measure, encode_corpus
    from transformer_jax.text.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(runs.trained_run() / "vocabulary.model")
    pairs = [("A dog.", "Ein Hund.")]
    encode_corpus(pairs, vocabulary, tmp_path / "cache", "key")
    [entry] = (tmp_path / "cache").glob("*.json")
    content = json.loads(entry.read_text())
    for trap in traps(marker):
        for name in ARRAYS:
            path = entry.parent / content["folder"] / f"{name}.npy"
            path.write_bytes(trap)
            content["files"][name] = _measure(path)  # as who sets a trap would
        entry.write_text(json.dumps(content))
        with pytest.raises(ValueError):
            encode_corpus(pairs, vocabulary, tmp_path / "cache", "key")
        assert not marker.exists()
