"""A user's mistakes, through the real command line: exit status 2, one line, nothing touched."""

import io
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import runs


class Sandbox:
    """A folder with a corpus, a config file and, where asked for, a trained run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.corpus = Path(shutil.copytree(runs.tiny_corpus(), folder / "corpus"))
        self.preset = runs.write_preset(folder / "preset.py", runs.TINY)
        self.run = folder / "run"

    def trained(self) -> Path:
        """Puts a copy of the trained run there; its corpus is the one in the sandbox."""
        return runs.copy_of_run(self.run)

    def train(self, *overrides: str, workdir: str | Path | None = None) -> list[str]:
        """The arguments of `train` on the sandbox's corpus."""
        keys = [f"--config.{override}" for override in overrides]
        start = ["train", f"--config={self.preset}", f"--workdir={workdir or self.run}"]
        return [*start, f"--config.data.path={self.corpus}", *keys]

    def uses(self, command: str, *flags: str) -> list[str]:
        """The arguments of a command that uses a trained run."""
        return [command, f"--workdir={self.run}", *flags]


Case = Callable[[Sandbox], Sequence[str]]
CASES: dict[str, tuple[Case, Sequence[str]]] = {}


def case(*said: str) -> Callable[[Case], Case]:
    """A mistake made in a sandbox, the command line its result; `said` is the answer."""

    def add(function: Case) -> Case:
        CASES[function.__name__] = (function, said)
        return function

    return add


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line_and_touches_nothing(name, tmp_path, capsys, monkeypatch):
    make, said = CASES[name]
    sandbox = Sandbox(tmp_path)
    arguments = make(sandbox)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"A dog.\n")))
    before = runs.contents(tmp_path)
    capsys.readouterr()
    assert runs.command(*arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("transformer-jax: ") and error.endswith("\n")
    assert error.count("\n") == 1, error
    for words in said:
        assert words.format(tmp=tmp_path) in error
    assert runs.contents(tmp_path) == before


# The corpus ------------------------------------------------------------------------------------


@case("data.path='{tmp}/nowhere' is not a folder")
def corpus_folder_is_missing(box: Sandbox) -> Sequence[str]:
    return [*box.train(), f"--config.data.path={box.folder}/nowhere"]


@case("data.path is not set", "--config.data.path=FOLDER")
def corpus_folder_is_not_named(box: Sandbox) -> Sequence[str]:
    return ["train", f"--config={box.preset}", f"--workdir={box.run}"]


@case("{tmp}/corpus/train.de: no such file, nor train.de.gz; stems there with .de: ")
def file_is_missing(box: Sandbox) -> Sequence[str]:
    (box.corpus / "train.de").unlink()
    return box.train()


@case("{tmp}/corpus/dev.en: no such file", "test, train, valid")
def stem_is_missing(box: Sandbox) -> Sequence[str]:
    return box.train("data.valid=dev")


@case("{tmp}/corpus/valid.en is empty")
def file_is_empty(box: Sandbox) -> Sequence[str]:
    (box.corpus / "valid.en").write_text("")
    return box.train()


@case("{tmp}/corpus/train.en has 300 lines and {tmp}/corpus/train.de has 301")
def sides_differ_in_length(box: Sandbox) -> Sequence[str]:
    with (box.corpus / "train.de").open("a") as file:
        file.write("Noch eine Zeile .\n")
    return box.train()


@case("{tmp}/corpus/train.en, line 7: not UTF-8", "iconv -t UTF-8")
def file_is_latin1(box: Sandbox) -> Sequence[str]:
    lines = (box.corpus / "train.en").read_bytes().split(b"\n")
    lines[6] = "Zoë".encode("latin-1")
    (box.corpus / "train.en").write_bytes(b"\n".join(lines))
    return box.train()


@case("{tmp}/corpus/valid.en.gz is not a whole gzip file")
def file_is_no_gzip(box: Sandbox) -> Sequence[str]:
    (box.corpus / "valid.en").rename(box.corpus / "valid.en.gz")
    return box.train()


@case("No pair can be trained on")
def every_pair_is_too_long(box: Sandbox) -> Sequence[str]:
    return box.train("data.max_length=2")


@case("vocabulary.size=30000 is more than the training text supports: set vocabulary.size to ")
def vocabulary_is_larger_than_the_corpus_supports(box: Sandbox) -> Sequence[str]:
    return box.train("vocabulary.size=30000")


@case("vocabulary.size=261 is too small", "set vocabulary.size to ")
def vocabulary_is_smaller_than_the_alphabet(box: Sandbox) -> Sequence[str]:
    return box.train("vocabulary.size=261")


@case("{tmp}/my.model: No such file or directory; name a SentencePiece .model file")
def vocabulary_file_is_missing(box: Sandbox) -> Sequence[str]:
    return box.train(f"vocabulary.path={box.folder}/my.model")


@case("preset.py is no SentencePiece model")
def vocabulary_file_is_something_else(box: Sandbox) -> Sequence[str]:
    return box.train(f"vocabulary.path={box.preset}")


# The config ------------------------------------------------------------------------------------


@case("model.d_modle is not a key of the config. Did you mean model.d_model?")
def key_is_unknown(box: Sandbox) -> Sequence[str]:
    return box.train("model.d_modle=32")


@case("--config.model.d_model=big: expected int")
def value_is_of_the_wrong_type(box: Sandbox) -> Sequence[str]:
    return box.train("model.d_model=big")


@case("model.d_model=16 is not divisible by model.num_heads=3", "set model.d_k")
def width_is_not_divisible_by_heads(box: Sandbox) -> Sequence[str]:
    return box.train("model.num_heads=3")


@case("model.d_model=15 is odd", "Use 16, or model.positions='learned'")
def width_is_odd_with_sinusoids(box: Sandbox) -> Sequence[str]:
    return box.train("model.d_model=15", "model.d_k=4")


@case("mesh.tensor=64", "needs 64 devices; this machine has ", "mesh.data=-1")
def mesh_is_larger_than_the_machine(box: Sandbox) -> Sequence[str]:
    return box.train("mesh.tensor=64", "mesh.data=1")


@case("model.max_positions=64 is too small for this corpus", "Raise it to ")
def validation_is_longer_than_the_learned_positions(box: Sandbox) -> Sequence[str]:
    for suffix in ("en", "de"):
        with (box.corpus / f"valid.{suffix}").open("a") as file:
            file.write("The dog sleeps. " * 30 + "\n")
    return box.train("model.positions=learned", "model.max_positions=64")


@case("a batch of 8 rows", "does not divide", "train.accumulate_steps", "divides 8")
def rows_are_not_divisible(box: Sandbox) -> Sequence[str]:
    return box.train("train.accumulate_steps=3")


@case("--config={tmp}/presett.py: there is no such file. Did you mean {tmp}/preset.py?")
def config_file_is_missing(box: Sandbox) -> Sequence[str]:
    return ["train", f"--config={box.folder}/presett.py", f"--workdir={box.run}"]


@case("preset.py, line 1: SyntaxError")
def config_file_is_not_python(box: Sandbox) -> Sequence[str]:
    box.preset.write_text("def get_config(:\n")
    return box.train()


@case("'trian' is not a command. Did you mean train?")
def command_is_unknown(box: Sandbox) -> Sequence[str]:
    return ["trian"]


# The run's folder ------------------------------------------------------------------------------


@case(
    "{tmp}/run holds another run: model.d_ff: the run has 32, the config now says 48", "--workdir"
)
def folder_holds_another_run(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.train("model.d_ff=48")


@case("{tmp}/run is not empty and holds no run. Choose another --workdir")
def folder_holds_foreign_files(box: Sandbox) -> Sequence[str]:
    box.run.mkdir()
    (box.run / "thesis.tex").write_text("years of work")
    return box.train()


@case("Cannot write into {tmp}/preset.py/run", "preset.py is a file")
def folder_is_below_a_file(box: Sandbox) -> Sequence[str]:
    return box.train(workdir=box.preset / "run")


@case("Cannot write into {tmp}/preset.py", "Choose another --workdir")
def folder_is_a_file(box: Sandbox) -> Sequence[str]:
    return box.train(workdir=box.preset)


@case("{tmp}/run/config.json cannot be read: the config is not JSON")
def config_of_the_run_is_broken(box: Sandbox) -> Sequence[str]:
    (box.trained() / "config.json").write_text('{"model": ')
    return box.train()


@case("{tmp}/run/vocabulary.model is no SentencePiece model")
def vocabulary_of_the_run_is_broken(box: Sandbox) -> Sequence[str]:
    path = box.trained() / "vocabulary.model"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return box.train("train.steps=1000")


@case("{tmp}/other holds no run: it has no config.json")
def origin_is_missing(box: Sandbox) -> Sequence[str]:
    return [*box.train(), f"--init_from={box.folder}/other"]


@case("train.init_from={tmp}/origin has no checkpoint yet")
def origin_has_no_checkpoint(box: Sandbox) -> Sequence[str]:
    origin = runs.copy_of_run(box.folder / "origin")
    shutil.rmtree(origin / "checkpoints")
    return [*box.train(), f"--init_from={origin}"]


@case("is a run of another model: model.d_ff: the run has 32, the config now says 48")
def origin_is_another_model(box: Sandbox) -> Sequence[str]:
    origin = runs.copy_of_run(box.folder / "origin")
    return [*box.train("model.d_ff=48"), f"--init_from={origin}"]


# Using a run -----------------------------------------------------------------------------------


def without_checkpoints(box: Sandbox, command: str) -> Sequence[str]:
    shutil.rmtree(box.trained() / "checkpoints")
    return box.uses(command)


@case("{tmp}/run has no checkpoint yet")
def translate_before_the_first_checkpoint(box: Sandbox) -> Sequence[str]:
    return without_checkpoints(box, "translate")


@case("{tmp}/run has no checkpoint yet")
def evaluate_before_the_first_checkpoint(box: Sandbox) -> Sequence[str]:
    return without_checkpoints(box, "evaluate")


@case("{tmp}/run has no checkpoint yet")
def average_before_the_first_checkpoint(box: Sandbox) -> Sequence[str]:
    return without_checkpoints(box, "average")


@case("{tmp}/run holds no run: it has no config.json", "python -m transformer_jax train")
def there_is_no_run(box: Sandbox) -> Sequence[str]:
    return box.uses("translate")


@case("--checkpoint=41 is not there. Valid: latest, best, average, 30, 35, 40.")
def checkpoint_is_unknown(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", "--checkpoint=41")


@case("{tmp}/run has no averaged checkpoint: run `average --workdir={tmp}/run` first")
def there_is_no_average(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("translate", "--checkpoint=average")


@case("40 is damaged: params/", "Choose another with --checkpoint")
def checkpoint_is_damaged(box: Sandbox) -> Sequence[str]:
    path = next((box.trained() / "checkpoints" / "40" / "params" / "d").iterdir())
    path.write_bytes(b"")
    return box.uses("translate")


@case("--last=4: {tmp}/run has its last 3 checkpoints (30, 35, 40)", "Give 1 to 3")
def more_are_averaged_than_there_are(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("average", "--last=4")


@case("--n_best=5 is not in 1..4", "Raise --beam_size")
def more_answers_than_beams(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("translate", "--n_best=5")


@case("decode.beam_size=0 is below 1")
def beam_of_none(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("translate", "--beam_size=0")


@case("--src and --ref belong together")
def references_are_not_named(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", f"--src={box.corpus}/test.en")


@case("{tmp}/corpus/test.en has 12 lines and {tmp}/corpus/valid.de has 24")
def references_are_of_another_text(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", f"--src={box.corpus}/test.en", f"--ref={box.corpus}/valid.de")


@case("Cannot write into {tmp}/run/evaluations")
def evaluations_cannot_be_kept(box: Sandbox) -> Sequence[str]:
    (box.trained() / "evaluations").write_text("a file")
    return box.uses("evaluate")


@case("{tmp}/nothing cannot be read: No such file or directory")
def source_file_is_missing(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", f"--src={box.folder}/nothing", f"--ref={box.corpus}/test.de")


@case("newstest.en: no such file", "stems there with .en: ")
def split_is_unknown(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", "--split=newstest")


@case("data.source='files' needs no preparation")
def nothing_is_to_be_prepared(box: Sandbox) -> Sequence[str]:
    return ["prepare", f"--config={box.preset}", f"--config.data.path={box.corpus}"]
