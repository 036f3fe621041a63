"""A user's mistakes on the real command line: exit status 2, one line, no file is changed."""

import gzip
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands import test_export, test_import
from transformer_jax.config.data import VocabularyConfig
from transformer_jax.config.schema import KEYS
from transformer_jax.interop.safetensors import read_safetensors, safetensors_bytes
from transformer_jax.text.vocabulary_training import train_vocabularies


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


def case(*message: str) -> Callable[[Case], Case]:
    """Registers a mistake: a function that returns a command line; its error has `message`."""

    def add(function: Case) -> Case:
        CASES[function.__name__] = (function, message)
        return function

    return add


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line_and_touches_nothing(name, tmp_path, capsys, monkeypatch):
    make, message = CASES[name]
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
    for words in message:
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


@case("vocabulary.separate=True", "Set model.tie_embeddings=False")
def vocabularies_are_separate_and_the_matrix_is_one(box: Sandbox) -> Sequence[str]:
    return box.train("vocabulary.separate=True")


@case("{tmp}/two.model has a vocabulary for each side", "Set model.tie_embeddings=False")
def vocabulary_file_has_two_and_the_matrix_is_one(box: Sandbox) -> Sequence[str]:
    return train_with_two_vocabularies(box)


@case("{tmp}/two.model has a vocabulary for each side, and model.output='copy' needs one")
def vocabulary_file_has_two_and_the_output_copies(box: Sandbox) -> Sequence[str]:
    untied = ("model.tie_embeddings=False", "model.tie_output=True")
    return train_with_two_vocabularies(box, *untied, "model.output=copy")


def train_with_two_vocabularies(box: Sandbox, *changes: str) -> Sequence[str]:
    sides = ["a dog"] * 9, ["ein Hund"] * 9
    both = train_vocabularies(*sides, VocabularyConfig(size=270), seed=0)
    both.save(box.folder / "two.model")
    return box.train(f"vocabulary.path={box.folder}/two.model", *changes)


@case("preset.py is not a SentencePiece model")
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


@case("mesh.tensor=64", "needs 64 devices, and there are ", "mesh.data=-1")
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


@case("run/config.json is not a Python file", "a run continues with train --workdir=RUN alone")
def config_file_is_that_of_a_run(box: Sandbox) -> Sequence[str]:
    box.trained()
    return ["train", f"--config={box.run}/config.json", f"--workdir={box.run}"]


@case("model.d_ff=32 is at the top of the config: d_ff is a key of the section model, as in {{")
def config_file_has_a_dotted_key(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "def get_config(): return {'model.d_ff': 32}\n")


@case("preset.py, line 1: SyntaxError")
def config_file_is_not_python(box: Sandbox) -> Sequence[str]:
    box.preset.write_text("def get_config(:\n")
    return box.train()


@case("'trian' is not a command. Did you mean train?")
def command_is_unknown(box: Sandbox) -> Sequence[str]:
    return ["trian"]


@case("preset.py: get_config returned coroutine, not a ConfigDict")
def config_file_has_an_asynchronous_function(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "async def get_config(): return {}\n")


@case("model.watched_heads=9 is above model.num_heads=2. Lower it")
def more_heads_are_watched_than_there_are(box: Sandbox) -> Sequence[str]:
    return box.train("model.watched_heads=9")


@case("'xyzzy' is no piece of the run's vocabulary")
def banned_subword_is_unknown_on_resume(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.train("train.steps=1000", "decode.banned_subwords=xyzzy")


@case("'xyzzy' is no piece of the run's vocabulary")
def banned_subword_is_unknown_in_a_dry_run(box: Sandbox) -> Sequence[str]:
    box.trained()
    return [*box.train("train.steps=1000", "decode.banned_subwords=xyzzy"), "--dry_run"]


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


@case("--workdir=gs://bucket/run: a run's folder is on a file system. Mount the bucket")
def workdir_is_a_bucket(box: Sandbox) -> Sequence[str]:
    return box.train(workdir="gs://bucket/run")


@case("--workdir={tmp}/[new] run: this path contains [", "Choose another --workdir")
def folder_has_the_name_of_a_pattern(box: Sandbox) -> Sequence[str]:
    return box.train(workdir=box.folder / "[new] run")


@case("{tmp}/runs?/run: this path contains ?", "or rename the folder")
def average_below_a_folder_with_the_name_of_a_pattern(box: Sandbox) -> Sequence[str]:
    runs.copy_of_run(box.folder / "runs?" / "run")
    return ["average", f"--workdir={box.folder}/runs?/run", "--last=1"]


@case("Cannot write into {tmp}/preset.py", "Choose another --workdir")
def folder_is_a_file(box: Sandbox) -> Sequence[str]:
    return box.train(workdir=box.preset)


@case("{tmp}/run/config.json cannot be read: the config is not JSON")
def config_of_the_run_is_broken(box: Sandbox) -> Sequence[str]:
    (box.trained() / "config.json").write_text('{"model": ')
    return box.train()


@case("{tmp}/run/vocabulary.model is not a SentencePiece model")
def vocabulary_of_a_run_without_sums_is_broken(box: Sandbox) -> Sequence[str]:
    path = box.trained() / "vocabulary.model"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (box.run / "run.sha256.json").unlink()
    return box.train("train.steps=1000")


@case("{tmp}/run/vocabulary.model was changed", "Put the run's own file back")
def vocabulary_of_the_run_is_of_another_run(box: Sandbox) -> Sequence[str]:
    path = box.trained() / "vocabulary.model"
    path.write_bytes(path.read_bytes().replace(b"the", b"eht"))
    return box.train("train.steps=1000")


@case("{tmp}/origin/vocabulary.model was changed")
def vocabulary_of_the_origin_is_of_another_run(box: Sandbox) -> Sequence[str]:
    origin = runs.copy_of_run(box.folder / "origin")
    (origin / "vocabulary.model").write_bytes(b"")
    return [*box.train(), f"--init_from={origin}"]


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


@case("holds no run: it has no config.json. The run is in the folder above: --workdir={tmp}/run,")
def checkpoint_is_given_as_the_run(box: Sandbox) -> Sequence[str]:
    box.trained()
    return ["translate", f"--workdir={box.run}/checkpoints/40"]


@case("The run is in the folder above: --workdir={tmp}/run, ")
def finetune_of_a_file_of_a_run(box: Sandbox) -> Sequence[str]:
    box.trained()
    return ["train", f"--config=finetune:{box.run}/config.json", f"--workdir={box.folder}/new"]


@case("--split=valid and --src={tmp}/corpus/test.en: give only one of them")
def both_a_split_and_a_file_are_evaluated(box: Sandbox) -> Sequence[str]:
    box.trained()
    files = f"--src={box.corpus}/test.en", f"--ref={box.corpus}/test.de"
    return box.uses("evaluate", "--split=valid", *files)


@case("--checkpoint=41 is not there. Valid: latest, best, 30, 35, 40.")
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


@case("/blank has no text, so nothing can be scored")
def references_have_no_text(box: Sandbox) -> Sequence[str]:
    box.trained()
    (box.folder / "blank").write_text("\n" * runs.SIZES["test"])
    return box.uses("evaluate", f"--src={box.corpus}/test.en", f"--ref={box.folder}/blank")


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


# More of the corpus ------------------------------------------------------------------------------


def with_training_file(box: Sandbox, content: bytes, name: str = "train.en") -> Sequence[str]:
    (box.corpus / "train.en").unlink()
    (box.corpus / name).write_bytes(content)
    return box.train()


@case("data.path='{tmp}/preset.py' is not a folder")
def corpus_folder_is_a_file(box: Sandbox) -> Sequence[str]:
    return [*box.train(), f"--config.data.path={box.preset}"]


@case("{tmp}/corpus/train.en, line 2: not UTF-8")
def file_is_binary(box: Sandbox) -> Sequence[str]:
    return with_training_file(box, bytes(range(256)) * 9)


@case("{tmp}/corpus/train.en, line 1: not UTF-8", "iconv -t UTF-8")
def file_is_utf16(box: Sandbox) -> Sequence[str]:
    text = (box.corpus / "train.en").read_text()
    return with_training_file(box, text.encode("utf-16"))


@case("{tmp}/corpus/train.en is empty")
def file_is_a_byte_order_mark(box: Sandbox) -> Sequence[str]:
    return with_training_file(box, b"\xef\xbb\xbf")


@case("{tmp}/corpus/train.en is compressed by gzip: call it train.en.gz")
def gzip_has_no_suffix(box: Sandbox) -> Sequence[str]:
    return with_training_file(box, gzip.compress((box.corpus / "train.en").read_bytes()))


@case("{tmp}/corpus/train.en.gz is not a whole gzip file")
def gzip_is_cut_off(box: Sandbox) -> Sequence[str]:
    whole = gzip.compress((box.corpus / "train.en").read_bytes())
    return with_training_file(box, whole[: len(whole) // 2], "train.en.gz")


@case("{tmp}/corpus/train.en.gz is not a whole gzip file: CRC check failed")
def gzip_is_damaged(box: Sandbox) -> Sequence[str]:
    whole = bytearray(gzip.compress((box.corpus / "train.en").read_bytes()))
    whole[-6] ^= 1
    return with_training_file(box, bytes(whole), "train.en.gz")


@case("{tmp}/corpus/train.en.gz is empty")
def gzip_holds_nothing(box: Sandbox) -> Sequence[str]:
    return with_training_file(box, gzip.compress(b""), "train.en.gz")


@case("{tmp}/corpus/train.en is a folder; give a regular file")
def file_is_a_folder(box: Sandbox) -> Sequence[str]:
    (box.corpus / "train.en").unlink()
    (box.corpus / "train.en").mkdir()
    return box.train()


@case("{tmp}/corpus/train.en: no such file, nor train.en.gz")
def file_is_a_link_to_itself(box: Sandbox) -> Sequence[str]:
    (box.corpus / "train.en").unlink()
    (box.corpus / "train.en").symlink_to("train.en")
    return box.train()


@case("{tmp}/corpus/train.en is a pipe or a device; give a regular file")
def file_is_a_pipe_that_nobody_writes(box: Sandbox) -> Sequence[str]:
    (box.corpus / "train.en").unlink()
    os.mkfifo(box.corpus / "train.en")
    return box.train()


def pipe_in_place_of(name: str, *command: str) -> Case:
    def make(box: Sandbox) -> Sequence[str]:
        box.trained()
        (box.run / name).unlink(missing_ok=True)
        os.mkfifo(box.run / name)
        return box.uses(*command) if command else box.train()

    return make


CASES |= {
    f"pipe in place of {name}": (pipe_in_place_of(name, *command), [message])
    for name, command, message in [
        ("vocabulary.model", ["translate"], "{tmp}/run/vocabulary.model is a pipe or a device"),
        ("config.json", ["average"], "{tmp}/run/config.json is a pipe or a device"),
        ("metrics.jsonl", [], "{tmp}/run/metrics.jsonl is a pipe or a device"),
        ("checkpoints/40.sha256.json", ["translate"], "40.sha256.json is not a manifest"),
    ]
}


@case("{tmp}/corpus/train.en/old.en: no such file")
def stem_is_below_a_file(box: Sandbox) -> Sequence[str]:
    return box.train("data.train=train.en/old")


@case("The training split has no text to make a vocabulary of: check data.path")
def training_text_is_blank(box: Sandbox) -> Sequence[str]:
    for suffix in ("en", "de"):
        (box.corpus / f"train.{suffix}").write_text("\n \n")
    return box.train()


@case("No pair can be trained on", "300 have an empty side")
def one_side_is_blank(box: Sandbox) -> Sequence[str]:
    return with_training_file(box, b"\n" * 300)


@case("vocabulary.size=400 is more than the training text supports")
def training_text_is_one_pair(box: Sandbox) -> Sequence[str]:
    for suffix in ("en", "de"):
        (box.corpus / f"train.{suffix}").write_text("A dog.\n")
    return box.train()


@case("{tmp}/corpus: Is a directory; name a SentencePiece .model file")
def vocabulary_file_is_a_folder(box: Sandbox) -> Sequence[str]:
    return box.train(f"vocabulary.path={box.corpus}")


# More of the config ------------------------------------------------------------------------------


def with_preset(box: Sandbox, content: str) -> Sequence[str]:
    box.preset.write_text(content)
    return box.train()


@case("--config={tmp}/corpus is not a file. Name a file in it, or a preset")
def config_file_is_a_folder(box: Sandbox) -> Sequence[str]:
    return ["train", f"--config={box.corpus}", f"--workdir={box.run}"]


def error_of_a_null_byte() -> str:
    """What Python says of source code with a null byte; the class differs within Python 3.11."""
    try:
        compile("\0", "", "exec")
    except (SyntaxError, ValueError) as error:
        return f"{type(error).__name__}: source code string cannot contain null bytes"
    raise AssertionError("Python compiled a null byte")


@case("preset.py", error_of_a_null_byte())
def config_file_is_binary(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "\0\1\2")


@case("preset.py has no function get_config")
def config_file_is_empty(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "")


@case("preset.py, line 1: ValueError: several lines")
def config_file_fails_at_length(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "raise ValueError('several\\n\\nlines')")


@case("preset.py, line 2: RecursionError")
def config_file_calls_itself(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "def get_config():\n    return get_config()\n")


@case("3 is not a key of the config")
def config_file_has_a_number_for_a_key(box: Sandbox) -> Sequence[str]:
    return with_preset(box, "def get_config():\n    return {3: 4}\n")


@case("train needs --workdir=FOLDER")
def folder_is_not_named(box: Sandbox) -> Sequence[str]:
    return ["train", f"--config={box.preset}"]


@case("--workdir= is empty: give --workdir=FOLDER")
def name_of_the_folder_is_empty(box: Sandbox) -> Sequence[str]:
    return ["train", f"--config={box.preset}", "--workdir="]


WRONG_VALUES = {
    "model.dropout=nan": "model.dropout=nan is not in [0, 1)",
    "model.dropout=1": "model.dropout=1.0 is not in [0, 1)",
    "model.dropout=10%": "--config.model.dropout=10%: expected float",
    "model.num_heads=0": "model.num_heads=0 is below 1",
    "model.norm=": "model.norm='' is not known; valid choices: 'post', 'pre', 'deep'",
    "model=3": "model is a section of the config. Name a key in it",
    "train.steps=-5": "train.steps=-5 is below 1",
    "train.steps=1e3": "--config.train.steps=1e3: expected int",
    "train.steps=": "--config.train.steps=: expected int",
    "train.steps=none": "--config.train.steps=none: expected int",
    "train.peak_learning_rate=inf": "train.peak_learning_rate=inf is not in (0, 3.4e+38)",
    "train.clip_norm=nan": "train.clip_norm=nan is not in (0, 3.4e+38)",
    "train.remat=perhaps": "--config.train.remat=perhaps: expected true or false",
    "train.accumulate_steps=1000000": "does not divide",
    "data.train=('a',": "--config.data.train=('a',: expected a list, such as a,b or ('a','b')",
    "data.train=()": "data.train is empty",
    "data.tgt=en": "data.src='en', data.tgt='en' must be two different suffixes",
    "data.path=": "data.path is not set",
    "mesh.data=0": "mesh.data=0 must be at least 1, or -1",
    "mesh.data=1000000": "devices, and there are ",
    "seed=-1": "seed=-1 is below 0",
    "seed=1" + "0" * 30: "is above 4294967295",
}


def of_value(override: str) -> Case:
    return lambda box: box.train(override)


CASES |= {
    f"value {override[:40]}": (of_value(override), [message])
    for override, message in WRONG_VALUES.items()
}


# More of the run's folder ------------------------------------------------------------------------


def with_file_of_the_run(box: Sandbox, name: str, content: str | bytes | None) -> Path:
    """A run of which one file holds something else; None: nothing, as it is a folder."""
    path = box.trained() / name
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def with_config_of_the_run(box: Sandbox, section: str, **values: object) -> Sequence[str]:
    path = box.trained() / "config.json"
    tree = json.loads(path.read_text())
    tree.setdefault(section, {}).update(values)
    path.write_text(json.dumps(tree))
    return box.uses("translate")


@case("{tmp}/run/config.json was changed: its section model is not what the run was made with")
def model_of_the_run_is_changed_by_hand(box: Sandbox) -> Sequence[str]:
    return with_config_of_the_run(box, "model", positions="none")


@case("{tmp}/run/run.sha256.json is damaged")
def sums_of_the_run_are_damaged(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "run.sha256.json", "{}")
    return box.uses("average", "--last=2")


@case("{tmp}/run/config.json cannot be read: model.experts is not a key of the config")
def run_is_of_a_newer_version(box: Sandbox) -> Sequence[str]:
    return with_config_of_the_run(box, "model", experts=3)


@case("{tmp}/run/config.json cannot be read: serving is not a key of the config")
def run_is_of_a_newer_version_with_another_section(box: Sandbox) -> Sequence[str]:
    return with_config_of_the_run(box, "serving", port=80)


@case("{tmp}/run/config.json cannot be read: model.d_model='16' is of type str; expected int")
def config_of_the_run_has_a_wrong_type(box: Sandbox) -> Sequence[str]:
    return with_config_of_the_run(box, "model", d_model="16")


@case("model.norm='mid' is not known")
def config_of_a_run_without_sums_has_a_value_that_cannot_be(box: Sandbox) -> Sequence[str]:
    arguments = with_config_of_the_run(box, "model", norm="mid")
    (box.run / "run.sha256.json").unlink()
    return arguments


@case("{tmp}/run/config.json cannot be read: the config is a JSON list")
def config_of_the_run_is_a_list(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "config.json", "[]")
    return box.train()


@case("{tmp}/run/config.json cannot be read")
def config_of_the_run_is_binary(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "config.json", b"\x80\x04\xff")
    return box.train()


@case("{tmp}/run/config.json cannot be read: the config is not JSON")
def config_of_the_run_is_empty(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "config.json", "")
    return box.uses("evaluate")


@case("{tmp}/run holds no run")
def config_of_the_run_is_a_folder(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "config.json", None)
    return box.uses("translate")


@case("{tmp}/run holds a run that was trained on other text")
def fingerprint_of_the_run_is_empty(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "corpus.sha256", "")
    return box.train("train.steps=1000")


@case("{tmp}/run/vocabulary.model: Is a directory")
def vocabulary_of_the_run_is_a_folder(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "vocabulary.model", None)
    return box.uses("translate")


@case("{tmp}/run/vocabulary.model: No such file or directory")
def vocabulary_of_the_run_is_missing(box: Sandbox) -> Sequence[str]:
    (box.trained() / "vocabulary.model").unlink()
    return box.uses("average", "--last=2")


@case("{tmp}/run has no checkpoint yet")
def checkpoints_of_the_run_are_a_file(box: Sandbox) -> Sequence[str]:
    shutil.rmtree(box.trained() / "checkpoints")
    (box.run / "checkpoints").write_text("")
    return box.uses("translate")


@case("40 is damaged: 40.sha256.json is not a manifest")
def manifest_is_binary(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "checkpoints/40.sha256.json", b"\x80\xff")
    return box.uses("translate")


@case("40 is damaged: metrics/metrics does not have the SHA-256 sum that was written")
def score_of_a_checkpoint_is_damaged(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "checkpoints/40/metrics/metrics", b"\xff")
    return box.uses("evaluate")


# More of using a run -----------------------------------------------------------------------------


@case("name a command first")
def nothing_is_asked_for(box: Sandbox) -> Sequence[str]:
    return []


@case("name a command first")
def flag_is_before_the_command(box: Sandbox) -> Sequence[str]:
    return [f"--workdir={box.run}", "translate"]


@case("translate needs --workdir=FOLDER")
def run_is_not_named(box: Sandbox) -> Sequence[str]:
    return ["translate"]


@case("{tmp}/corpus cannot be read: Is a directory")
def source_is_a_folder(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", f"--src={box.corpus}", f"--ref={box.corpus}/test.de")


@case("{tmp}/nothing.en is empty")
def source_is_empty(box: Sandbox) -> Sequence[str]:
    box.trained()
    (box.folder / "nothing.en").write_text("")
    return box.uses("evaluate", f"--src={box.folder}/nothing.en", f"--ref={box.corpus}/test.de")


@case("{tmp}/run/vocabulary.model, line ", "not UTF-8")
def source_is_binary(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("evaluate", f"--src={box.run}/vocabulary.model", f"--ref={box.preset}")


@case("{tmp}/loop cannot be read: Too many levels of symbolic links")
def source_is_a_link_to_itself(box: Sandbox) -> Sequence[str]:
    box.trained()
    (box.folder / "loop").symlink_to("loop")
    return box.uses("evaluate", f"--src={box.folder}/loop", f"--ref={box.corpus}/test.de")


@case("data.path='{tmp}/moved' is not a folder")
def corpus_of_the_run_has_moved(box: Sandbox) -> Sequence[str]:
    with_config_of_the_run(box, "data", path=f"{box.folder}/moved")
    return box.uses("evaluate")


@case("The sentence is blank")
def sentence_is_blank(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("attention", " \t", f"--output={box.folder}/heat.png")


WRONG_FLAGS = {
    "translate --workdir=": "--workdir= is empty: give --workdir=FOLDER, or leave it out.",
    "translate --checkpoint=": "--checkpoint= is empty: give --checkpoint=WHICH, or leave it out.",
    "translate --checkpoint=41": "{tmp}/run: --checkpoint=41 is not there. Valid: latest, best, 30",
    "translate --checkpoint=-1": "--checkpoint=-1 is not there",
    "translate --checkpoint=../checkpoints/40": "--checkpoint=../checkpoints/40 is not there",
    "translate --n_best=0": "--n_best=0 is below 1",
    "translate --n_best=many": "--n_best=many: invalid literal for int()",
    "translate --beam_size=4.5": "--beam_size=4.5: invalid literal for int()",
    "translate --length_penalty=nan": "decode.length_penalty=nan is not in [0, 10)",
    "translate --length_penalty=-1": "decode.length_penalty=-1.0 is not in [0, 10)",
    "translate --length_penalty=high": "could not convert string to float: 'high'",
    "translate --scores=maybe": "--scores=maybe",
    "translate --beamsize=4": "Unknown command line flag 'beamsize'. Did you mean: beam_size ?",
    "translate --src=input.en": "Unknown command line flag 'src'",
    "translate input.en": "'input.en'; flags: translate --help. It reads standard input: < FILE.",
    "attention A dog": "attention takes one SENTENCE, not 2 arguments: put it in quotation marks",
    "attention --output=x.png": "attention needs SENTENCE: what to translate",
    "attention --kind=self x": "--kind=self is not one of encoder, decoder, cross, all",
    "attention --kind=all x": "--kind=all is more than a picture: name a file that ends in one",
    "evaluate --beam_size=-3": "decode.beam_size=-3 is below 1",
    "evaluate --examples=all": "--examples=all: invalid literal for int()",
    "evaluate --split=": "--split= is empty: give --split=NAME, or leave it out.",
    "evaluate --src= --ref=x.de": "--src= is empty: give --src=FILE, or leave it out.",
    "align --src=x.en --tgt=x.de --gold=": "--gold= is empty: give --gold=FILE, or leave it out.",
    "evaluate --src=x.en --ref=,": "--src and --ref belong together",
    "attention -5": "Unknown command line flag '5'. A SENTENCE that begins with a dash follows --",
    "attention -- -5 --layer=1": "takes one SENTENCE, not 2 arguments: flags come before --.",
    "plot --output=.png": "--output=.png: a PNG is written; name a file that ends in .png.",
    "plot --output=/dev/null/x.png": "/dev/null. Move it out of the way, or name another file.",
    "average --last=0": "--last=0: {tmp}/run has its last 3 checkpoints (30, 35, 40)",
    "average --last=-1": "--last=-1: {tmp}/run has its last 3 checkpoints (30, 35, 40)",
    "average --last=two": "--last=two: invalid literal for int()",
}


def of_flag(name: str) -> Case:
    def make(box: Sandbox) -> Sequence[str]:
        box.trained()
        return box.uses(*name.split())

    return make


CASES |= {name: (of_flag(name), [message]) for name, message in WRONG_FLAGS.items()}


# A run that somebody has edited ---------------------------------------------------------------


@case("{tmp}/run/config.json cannot be read: the config cannot be read as JSON")
def config_of_the_run_is_too_deep(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "config.json", "[" * 100_000)
    return box.uses("evaluate")


@case("params cannot be restored (ValueError): it is damaged, or not of the model that")
def config_of_a_run_without_sums_is_of_another_model(box: Sandbox) -> Sequence[str]:
    arguments = with_config_of_the_run(box, "model", d_model=32)
    (box.run / "run.sha256.json").unlink()
    return arguments


@case("{tmp}/run/corpus.sha256 cannot be read")
def fingerprint_of_the_run_is_binary(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "corpus.sha256", b"\xff\xfe")
    return box.train("train.steps=1000")


@case('{tmp}/run/metrics.jsonl:1 is not metrics (an object with "step", "kind" and numbers)')
def metrics_of_the_run_are_words(box: Sandbox) -> Sequence[str]:
    line = '{"step": 1, "kind": "train", "nats_per_token": "high"}\n'
    with_file_of_the_run(box, "metrics.jsonl", line)
    return box.uses("plot", f"--output={box.folder}/x.png")


@case("{tmp}/run/metrics.jsonl:1 is not metrics")
def metrics_of_the_run_are_broken(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "metrics.jsonl", "hello\n")
    return box.train("train.steps=1000")


@case("{tmp}/run/metrics.jsonl cannot be read: Is a directory")
def metrics_of_the_run_are_a_folder(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "metrics.jsonl", None)
    return box.train("train.steps=1000")


@case("{tmp}/run has checkpoints and no vocabulary.model")
def vocabulary_of_the_run_is_missing_on_resume(box: Sandbox) -> Sequence[str]:
    (box.trained() / "vocabulary.model").unlink()
    return box.train("train.steps=1000")


@case("Cannot write into {tmp}/run/checkpoints: it is a file")
def checkpoints_are_a_file_on_resume(box: Sandbox) -> Sequence[str]:
    shutil.rmtree(box.trained() / "checkpoints")
    (box.run / "checkpoints").write_text("")
    return box.train("train.steps=1000")


@case("40 is damaged: 40.sha256.json is not a manifest")
def manifest_is_a_folder(box: Sandbox) -> Sequence[str]:
    with_file_of_the_run(box, "checkpoints/40.sha256.json", None)
    return box.uses("translate")


@case("40/params cannot be restored (FileNotFoundError)")
def checkpoint_without_manifest_is_damaged(box: Sandbox) -> Sequence[str]:
    (box.trained() / "checkpoints" / "40.sha256.json").unlink()
    shutil.rmtree(box.run / "checkpoints" / "40" / "params")
    return box.uses("translate")


@case("Cannot write into {tmp}/run/averages/40-last2: Not a directory")
def averages_are_a_file(box: Sandbox) -> Sequence[str]:
    (box.trained() / "averages").write_text("")
    return box.uses("average", "--last=2")


@case("No validation pair has text on both sides")
def validation_text_is_blank(box: Sandbox) -> Sequence[str]:
    for suffix in ("en", "de"):
        (box.corpus / f"valid.{suffix}").write_text("\n")
    return box.train()


@case("--init_from= is empty: give --init_from=FOLDER, or leave it out.")
def origin_is_empty(box: Sandbox) -> Sequence[str]:
    return [*box.train(), "--init_from="]


@case("export takes one --workdir=FOLDER, not several.")
def two_runs_to_export(box: Sandbox) -> Sequence[str]:
    return [
        "export",
        "--workdir=a",
        "--workdir=b",
        "--format=stablehlo",
        f"--output={box.folder}/x",
    ]


@case("data.path='~nobody-has-this-name/x' is not a folder")
def corpus_folder_is_in_the_home_of_nobody(box: Sandbox) -> Sequence[str]:
    return [*box.train(), "--config.data.path=~nobody-has-this-name/x"]


@case("File name too long: {tmp}/xxx")
def folder_has_too_long_a_name(box: Sandbox) -> Sequence[str]:
    return box.train(workdir=box.folder / ("x" * 300))


@case("--output={tmp}/corpus: name a file that ends in one of .png, .pdf, .svg, .html, .npz")
def heat_map_is_a_folder(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("attention", "A dog.", f"--output={box.corpus}")


@case("--output={tmp}/run/config.json is a file of the run in {tmp}/run, and would be overwrit")
def heat_map_would_replace_the_config(box: Sandbox) -> Sequence[str]:
    box.trained()
    return box.uses("attention", "A dog.", f"--output={box.run}/config.json")


MORE = {
    "evaluate --examples=-3": "--examples=-3: give the number",
    "translate --checkpoint=" + "9" * 5000: "is not there. Valid: latest",
    "translate --checkpoint=٤٠": "--checkpoint=٤٠ is not there",
    "translate --beam_size=1" + "0" * 30: " is above 1000",
    "translate --config.decode.max_extra_length=2000000000": " is above 1000000",
    "evaluate --config.decode.tokens_per_batch=2000000000": " is above 1000000",
    "attention x --output=/proc/x.png": "No file can be created there: /proc/x.png. ",
}
CASES |= {name[:30]: (of_flag(name), [message]) for name, message in MORE.items()}
MORE = {
    key + "=1" + "0" * 30: f" is above {KEYS[key].at_most or 2_147_483_647}"
    for key in ("model.d_model", "train.steps", "train.row_length", "vocabulary.size")
}
CASES |= {f"value {name[:40]}": (of_value(name), [message]) for name, message in MORE.items()}


# Importing, exporting and scoring ----------------------------------------------------------------

HF, OPUS = "hf", "opus"


def importing(box: Sandbox, kind: str, file: str, content: str | bytes | None) -> Sequence[str]:
    """`import` of a folder in which one file has this content; None: the file is a pipe."""
    make = {HF: lambda: test_export.exported("post", "huggingface"), OPUS: test_import.opus_folder}
    folder = Path(shutil.copytree(make[kind](), box.folder / kind))
    (folder / file).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / file)
    else:
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
    return ["import", f"--from={folder}", f"--workdir={box.run}", "--src=en", "--tgt=de"]


def of_file(kind: str, file: str, content: str | bytes | None) -> Case:
    return lambda box: importing(box, kind, file, content)


def of_settings(**values: object) -> Case:
    """`import` of a Hugging Face folder with other settings of the model."""

    def make(box: Sandbox) -> Sequence[str]:
        text = (test_export.exported("post", "huggingface") / "config.json").read_text()
        return importing(box, HF, "config.json", json.dumps({**json.loads(text), **values}))

    return make


IMPORTS = {
    "an empty SentencePiece model": (
        of_file(HF, "source.spm", ""),
        "source.spm is not a SentencePie",
    ),
    "another file as such a model": (
        of_file(OPUS, "target.spm", "{}"),
        "target.spm is not a Sente",
    ),
    "a pipe as vocabulary": (of_file(HF, "vocab.json", None), "vocab.json is a pipe or a device"),
    "cut-off weights": (of_file(HF, "model.safetensors", b"\x09\0\0"), "is not a safetensors file"),
    "one id twice": (of_file(HF, "vocab.json", '{"</s>": 1, "a": 1}'), "have the same id"),
    "beams in words": (
        of_file(HF, "generation_config.json", '{"num_beams": "four"}'),
        "{tmp}/hf: num_beams='four' is not a number.",
    ),
    "beams in words (Marian)": (
        of_file(OPUS, "decoder.yml", "beam-size: four"),
        "decoder.yml: beam-size='four' is not a number.",
    ),
    "an exponent that is a list": (
        of_file(OPUS, "decoder.yml", "normalize: [1]"),
        "decoder.yml: normalize=[1] is not a number.",
    ),
    "a model that is not a list": (
        of_file(OPUS, "decoder.yml", "models: model.npz"),
        "decoder.yml: models='model.npz' is not a list of files.",
    ),
    "no heads": (
        of_settings(encoder_attention_heads=0, decoder_attention_heads=0),
        "settings cannot be right: model.num_heads=0 is below 1",
    ),
    "a width beyond any machine": (of_settings(d_model=10**9), "model.d_model=1000000000 is above"),
    "another width than the weights'": (of_settings(d_model=10**6), "and the settings say d_model"),
}
CASES |= {f"import of {name}": (make, [message]) for name, (make, message) in IMPORTS.items()}


@case("model.shared.weight has values that are not numbers: the weights are damaged")
def import_of_weights_that_are_no_numbers(box: Sandbox) -> Sequence[str]:
    path = test_export.exported("post", "huggingface") / "model.safetensors"
    arrays = {name: np.array(x) for name, x in read_safetensors(path).items()}
    arrays["model.shared.weight"][3] = np.nan
    return importing(box, HF, path.name, safetensors_bytes(arrays))


@case("name the two languages: --src=en --tgt=de")
def import_of_a_language_that_is_none(box: Sandbox) -> Sequence[str]:
    arguments = importing(box, OPUS, "README.md", "")
    return [*arguments, "--src= ", "--tgt=../de"]


@case("--from={tmp}/run is a run's folder already")
def import_of_a_run(box: Sandbox) -> Sequence[str]:
    return ["import", f"--from={box.trained()}", f"--workdir={box.folder}/new"]


@case("{tmp}/run was imported and has no text of its own", "--src=FILE")
def evaluate_an_imported_run_without_text(box: Sandbox) -> Sequence[str]:
    shutil.copytree(test_import.imported(), box.run)  # moved: data.path is the old place
    return box.uses("evaluate")


def exporting(box: Sandbox, **changes: str) -> Sequence[str]:
    """`export` of a model that Hugging Face has a place for."""
    shutil.copytree(test_export.run_of("post"), box.run)
    flags = {"format": "huggingface", "output": f"{box.folder}/out", **changes}
    return box.uses("export", *(f"--{name}={value}" for name, value in flags.items()))


@case("--output=gs://bucket/x is not a folder of a file system")
def export_to_a_bucket(box: Sandbox) -> Sequence[str]:
    return exporting(box, output="gs://bucket/x")


@case("--output={tmp}/preset.py/x cannot be written: Not a directory.")
def export_below_a_file(box: Sandbox) -> Sequence[str]:
    return exporting(box, output=f"{box.preset}/x")


@case("--output={tmp}/link cannot be written: File exists.")
def export_to_a_link_to_nothing(box: Sandbox) -> Sequence[str]:
    (box.folder / "link").symlink_to("nothing")
    return exporting(box, output=f"{box.folder}/link")


@case("x.json: bleu='high' is not a number. Remove the file.")
def export_of_a_run_with_a_damaged_evaluation(box: Sandbox) -> Sequence[str]:
    arguments = exporting(box)
    (box.run / "evaluations").mkdir()
    (box.run / "evaluations" / "x.json").write_text('{"checkpoint": "0", "bleu": "high"}')
    return arguments


@case("{tmp}/run/corpus.sha256, line 1: not UTF-8")
def export_of_a_run_with_a_binary_fingerprint(box: Sandbox) -> Sequence[str]:
    arguments = exporting(box)
    (box.run / "corpus.sha256").write_bytes(b"\xff\xfe")
    return arguments


def scoring(src: str, tgt: str, *flags: str) -> Case:
    def make(box: Sandbox) -> Sequence[str]:
        box.trained()
        (box.folder / "nothing").write_text("")
        (box.folder / "latin").write_bytes(b"Zo\xeb\n" * 12)
        files = f"--src={box.folder}/{src}", f"--tgt={box.folder}/{tgt}"
        return box.uses("score", *files, *flags)

    return make


SCORES = {
    "a folder": (scoring("corpus", "corpus/test.de"), "{tmp}/corpus cannot be read: Is a direct"),
    "no text": (scoring("nothing", "nothing"), "{tmp}/nothing is empty"),
    "Latin-1": (scoring("corpus/test.en", "latin"), "{tmp}/latin, line 1: not UTF-8"),
    "a penalty that is not a number": (
        scoring("corpus/test.en", "corpus/test.de", "--length_penalty=nan"),
        "decode.length_penalty=nan is not in",
    ),
    "a key of training": (
        scoring("corpus/test.en", "corpus/test.de", "--config.train.steps=3"),
        "score does not take --config.train.steps. It takes decode.penalty, ",
    ),
}
CASES |= {f"score of {name}": (make, [message]) for name, (make, message) in SCORES.items()}


# Going on from another run -----------------------------------------------------------------------


@case("--config=finetune: names no run")
def finetune_without_a_folder(box: Sandbox) -> Sequence[str]:
    return ["train", "--config=finetune:", f"--workdir={box.run}"]


@case("--config=finetune: its get_config needs one argument")
def finetune_without_an_argument(box: Sandbox) -> Sequence[str]:
    return ["train", "--config=finetune", f"--workdir={box.run}"]


@case("{tmp}/hf is a model of Hugging Face, not a run. Make a run of it: ")
def finetune_of_a_folder_that_was_not_imported(box: Sandbox) -> Sequence[str]:
    importing(box, HF, "README.md", "")
    return ["train", f"--config=finetune:{box.folder}/hf", f"--workdir={box.run}"]
