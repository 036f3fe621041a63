"""A user's mistakes on the real command line: exit status 2, one line, no file is changed."""

import functools
import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from tests.commands import test_export, test_import
from tests.fixtures.cases import of_table
from transformer_jax.config.schema import KEYS
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.text.vocabulary_training import train_vocabularies

# In command lines: {tmp} is a folder with a corpus, preset.py, two.model and a trained run.
WORDS = {
    "UNTIED": "NEW --config.model.tie_embeddings=False --config.model.tie_output=True",
    "NEW": "TRAIN --workdir={tmp}/new",
    "RESUME": "TRAIN RUN --config.train.steps=1000",
    "TRAIN": "train --config={tmp}/preset.py --config.data.path={tmp}/corpus",
    "RUN": "--workdir={tmp}/run",
}


@functools.cache
def two_vocabularies() -> Path:
    """The file of a vocabulary of each side."""
    sides = ["a dog"] * 9, ["ein Hund"] * 9
    path = Path(runs.scratch().name) / "two.model"
    train_vocabularies(*sides, VocabularyConfig(size=270), seed=0).save(path)
    return path


def fill(folder: Path) -> Path:
    """Makes a folder with a corpus, a config file, vocabularies and a trained run."""
    shutil.copytree(runs.tiny_corpus(), folder / "corpus")
    runs.write_preset(folder / "preset.py", runs.TINY)
    shutil.copy(two_vocabularies(), folder)
    runs.copy_of_run(folder / "run")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A box that no test changes."""
    return fill(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box in which a test breaks something."""
    return fill(tmp_path)


Refuse = Callable[..., None]


@pytest.fixture
def refuse(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Refuse:
    """Checks that a command line is refused in one line that has these words, in the test's box."""
    box = request.getfixturevalue("box" if "box" in request.fixturenames else "whole")

    def check(line: str, *words: str) -> None:
        for word, meaning in WORDS.items():
            line = re.sub(rf"\b{word}\b", meaning, line)
        arguments = [part.replace("{tmp}", str(box)) for part in shlex.split(line)]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"A dog.\n")))
        before = runs.contents(box)
        capsys.readouterr()
        assert runs.command(*arguments) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("transformer-jax: ") and error.endswith("\n")
        assert error.count("\n") == 1, error
        for one in words:
            assert one.replace("{tmp}", str(box)) in error
        assert runs.contents(box) == before

    return check


# Command lines, and what the error of each must say; an indented line continues the one above.
LINES = """
NEW --config.data.path={tmp}/nowhere | data.path='{tmp}/nowhere' is not a folder
NEW --config.data.path=~nobody-has-this-name/x | data.path='~nobody-has-this-name/x' is not a folder
train --config={tmp}/preset.py --workdir={tmp}/new
    data.path is not set | --config.data.path=FOLDER
NEW --config.data.valid=dev | {tmp}/corpus/dev.en: no such file | test, train, valid
NEW --config.data.train=train.en/old | {tmp}/corpus/train.en/old.en: no such file
NEW --config.data.max_length=2 | No pair can be trained on
NEW --config.vocabulary.size=30000
    vocabulary.size=30000 is more than the training text supports: set vocabulary.size to
NEW --config.vocabulary.size=261 | vocabulary.size=261 is too small | set vocabulary.size to
NEW --config.vocabulary.path={tmp}/my.model
    {tmp}/my.model: No such file or directory; name a SentencePiece .model file
NEW --config.vocabulary.path={tmp}/preset.py | preset.py is not a SentencePiece model
NEW --config.vocabulary.path={tmp}/two.model
    {tmp}/two.model has a vocabulary for each side | Set model.tie_embeddings=False
UNTIED --config.vocabulary.path={tmp}/two.model --config.model.output=copy
    {tmp}/two.model has a vocabulary for each side, and model.output='copy' needs one
NEW --config.vocabulary.path=x.model --config.vocabulary.kind=unigram
    vocabulary.path | vocabulary.kind='unigram' | the file is a vocabulary that was trained
NEW --config.data.test=test,test | data.test=test,test names a text twice
NEW --config.train.schedule=linear --config.train.steps=9 --config.train.decay_steps=9
    train.decay_steps=9 must be above train.warmup_steps= | at step train.decay_steps. Warm up for
NEW --config.vocabulary.separate=True | vocabulary.separate=True | Set model.tie_embeddings=False
NEW --config.mesh.data=0 | mesh.data=0 must be at least 1, or -1
NEW --config.model.num_heads=3
    model.d_model=16 is not divisible by model.num_heads=3 | set model.d_k
NEW --config.model.d_model=15 --config.model.d_k=4
    model.d_model=15 is odd | Use 16, or model.positions='learned'
NEW --config.mesh.tensor=64 --config.mesh.data=1
    mesh.tensor=64 | needs 64 devices, and there are | mesh.data=-1
NEW --config.train.accumulate_steps=3
    a batch of 8 rows | does not divide | train.accumulate_steps | or train.rows_multiple=3
NEW --config.model.watched_heads=9 | model.watched_heads=9 is above model.num_heads=2. Lower it
TRAIN --workdir={tmp}/preset.py | Cannot write into {tmp}/preset.py | Choose another --workdir
TRAIN --workdir={tmp}/preset.py/run | Cannot write into {tmp}/preset.py/run | preset.py is a file
TRAIN --workdir=gs://bucket/run
    --workdir=gs://bucket/run: a run's folder is on a disk or a network disk
TRAIN '--workdir={tmp}/[new] run'
    --workdir={tmp}/[new] run: this path contains [ | Choose another --workdir
NEW --init_from={tmp}/other | {tmp}/other holds no run: | Name a run with --init_from=FOLDER.
NEW --config.train.teacher={tmp}/other
    {tmp}/other holds no run | Name a run with --config.train.teacher=FOLDER.
NEW --init_from={tmp}/run --config.model.d_ff=48
    is a run of another model: model.d_ff: the run has 32, the config now says 48
NEW --init_from=a --config.train.init_from=b | say two things: give one
NEW --wrokdir=w | 'wrokdir'. Did you mean: workdir
NEW --model.d_ff=4 | 'model.d_ff'. Did you mean: --config.model.d_ff?
NEW --num_heads=7 | Did you mean: --config.model.num_heads?
NEW {tmp}/preset.py | train does not take '
NEW --restarts=-1 | --restarts=-1 is below 0.
NEW --num_processes=0 | --num_processes=0 is below 1.
NEW --num_processes=2 --process_id=0 | belong together
RESUME --config.model.d_ff=48
    {tmp}/run holds another run: model.d_ff: the run has 32, the config now says 48 | --workdir
RESUME --config.model.encoder=recurrent --config.model.decoder=recurrent --config.model.d_hidden=24
    model.encoder: the run has 'transformer' | model.decoder: the run has 'transformer'
RESUME --config.decode.banned_subwords=xyzzy | 'xyzzy' is no piece of the run's vocabulary
RESUME --config.decode.banned_subwords=xyzzy --dry_run | 'xyzzy' is no piece of the run's vocabulary

train --workdir={tmp}/w | train needs --config=FILE[:ARGUMENT]: | /w holds no run to continue.
train RUN --config.train.steps=0 | train.steps=0 is below 1
train --print_config | train needs --config=FILE
TRAIN | train needs --workdir=FOLDER
train --config={tmp}/presett.py --workdir={tmp}/new
    --config={tmp}/presett.py: there is no such file. Did you mean {tmp}/preset.py?
train --config={tmp}/corpus --workdir={tmp}/new
    --config={tmp}/corpus is not a file. Name a file in it, or a preset
train RUN --config={tmp}/run/config.json
    run/config.json is not a Python file | a run continues with train --workdir=RUN alone
train --config={tmp}/preset.py:big --workdir={tmp}/new | takes no argument
train --config=finetune: --workdir={tmp}/new | --config=finetune: names no run
train --config=finetune --workdir={tmp}/new | --config=finetune: its get_config needs one argument
train --config=finetune:{tmp}/run/config.json --workdir={tmp}/new
    The run is in the folder above: --workdir={tmp}/run,
prepare --config={tmp}/preset.py --config.data.path={tmp}/corpus
    data.source='files' needs no preparation

--workdir={tmp}/run translate | name a command first
trian | 'trian' is not a command. Did you mean train?
keys decode.beem_size | Did you mean decode.beam_size?
keys train nokey | keys takes one PREFIX, not 2 arguments: give one of them.
zzz | 'zzz' is not a command. Commands: train, translate

translate | translate needs --workdir=FOLDER
translate --workdir= | --workdir= is empty: give --workdir=FOLDER, or leave it out.
translate --workdir={tmp}
    {tmp} holds no run: it has no config.json | python -m transformer_jax train
translate --workdir={tmp}/run/checkpoints/40
    holds no run: it has no config.json. The run is in the folder above: --workdir={tmp}/run,
translate --workdir={tmp}/run/revers | There is no such folder in the run --workdir={tmp}/run.
translate RUN --checkpoint=average
    {tmp}/run has no averaged checkpoint: run `average --workdir={tmp}/run` first
translate RUN --checkpoint= | --checkpoint= is empty: give --checkpoint=WHICH, or leave it out.
translate RUN --checkpoint=41
    {tmp}/run: --checkpoint=41 is not there. Valid: latest, best, 30, 35, 40.
translate RUN --checkpoint=٤٠ | --checkpoint=٤٠ is not there
translate RUN --checkpoint=../checkpoints/40 | --checkpoint=../checkpoints/40 is not there
translate RUN --to=de | decode.to=de: the run has one direction. Leave it (`--to`) out
translate RUN --n_best=5 | --n_best=5 is not in 1..4 | Raise --beam_size
translate RUN --n_best=0 | --n_best=0 is below 1
translate RUN --beam_size=4.5 | --beam_size=4.5: invalid literal for int()
translate RUN --beam_size=0 | decode.beam_size=0 is below 1
translate RUN --sample --n_best=1001 | --n_best=1001 is not in 1..1000
translate RUN --sample --beam_size=2 | decode.beam_size=2 changes nothing here
translate RUN --sample --config.decode.method=mbr | --sample and decode.method='mbr'
translate RUN --config.decode.method=mbr --config.decode.samples=6 --n_best=7
    mbr chooses from 6 samples
translate RUN --length_penalty=-1 | decode.length_penalty=-1.0
translate RUN --length_penalty=nan | decode.length_penalty=nan is not in [0, 10)
translate RUN --config.decode.beem_size=2 | mean decode.beam_size?
translate RUN --config.data.path=x | It takes decode.*.
translate RUN --beamsize=4 | Unknown command line flag 'beamsize'. Did you mean: beam_size ?
translate RUN --workdir={tmp}/nowhere | nowhere holds no run: it has no config.json
translate RUN --engine=marian | --engine=marian is unknown; there is ctranslate2
translate RUN --engine=ctranslate2:int3 | --engine=ctranslate2:int3: its types are float32, f
translate RUN --engine=ctranslate2 --sample | has beam search only
translate RUN --engine=ctranslate2 --coverage_penalty=0.2 | without a coverage penalty
translate RUN --engine=ctranslate2 --config.decode.groups=2 | penalty and decode.groups
translate RUN --engine=ctranslate2 --config.decode.dtype=bfloat16
    --config.decode.dtype=none --config.decode.weights=none
translate RUN --engine=ctranslate2 --config.decode.weights=bfloat16
    as in --engine=ctranslate2:int8
translate RUN RUN --engine=ctranslate2 | --engine=ctranslate2 has one model
translate RUN --simultaneous | this run has model.wait_k=None
translate RUN RUN --simultaneous | excludes an ensemble
translate RUN --simultaneous --beam_size=2 | excludes a beam of 2
translate RUN --simultaneous --beam_size=0 | excludes a beam of 0
translate RUN --simultaneous --config.decode.beam_size=3 | excludes a beam of 3
translate RUN --simultaneous --n_best=2 --scores | excludes --n_best, --scores
translate RUN --simultaneous --n_best=0 | excludes --n_best
translate RUN --simultaneous --sample --engine=ctranslate2 | excludes --sample, --engine
translate RUN --simultaneous --length_penalty=0.5 | excludes --length_penalty
translate RUN --simultaneous --config.decode.method=mbr | excludes decode.method
translate RUN input.en | 'input.en'; flags: translate --help. It reads standard input: < FILE.

evaluate RUN --split=newstest | newstest.en: no such file | stems there with .en:
evaluate RUN --split=test*2 | test*2: a weight is for training text. Leave it out
evaluate RUN --split=valid --src={tmp}/corpus/test.en --ref={tmp}/corpus/test.de
    --split=valid and --src={tmp}/corpus/test.en: give only one of them
evaluate RUN --src=x.en --ref=, | --src and --ref belong together
evaluate RUN --src={tmp}/corpus/test.en --ref={tmp}/corpus/valid.de
    {tmp}/corpus/test.en has 12 lines and {tmp}/corpus/valid.de has 24
evaluate RUN --src={tmp}/nothing --ref={tmp}/corpus/test.de
    {tmp}/nothing cannot be read: No such file or directory
evaluate RUN --src={tmp}/corpus --ref={tmp}/corpus/test.de
    {tmp}/corpus cannot be read: Is a directory
evaluate RUN --src={tmp}/run/vocabulary.model --ref={tmp}/preset.py
    {tmp}/run/vocabulary.model, line | not UTF-8
evaluate RUN --from=de --to=en | this run has one direction
evaluate RUN --from=en --to=en | --from=en --to=en: name two different languages
evaluate RUN --split=test:en-de --from=en --to=de | has a direction already: leave --from and --to
evaluate RUN --examples=-3 | --examples=-3: give the number
evaluate RUN --config.model.d_ff=3
    evaluate does not take --config.model.d_ff.
    It takes decode.*, data.source, data.path, data.valid, data.test.
score RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --config.train.steps=3
    score does not take --config.train.steps. It takes decode.to, decode.penalty,
score RUN --src={tmp}/corpus/test.en | score needs --tgt=FILE
score RUN --tgt={tmp}/corpus/test.de | --src=FILE is missing
score RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/valid.de
    {tmp}/corpus/test.en has 12 lines and {tmp}/corpus/valid.de has 24
score RUN --src={tmp}/corpus/test.en --tgt={tmp}/nothing
    {tmp}/nothing cannot be read: No such file or directory
score RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --checkpoint=7
    --checkpoint=7 is not there
align --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --layer=1
    --layer, --explain, --checkpoint, --to and keys are of a run: add --workdir=FOLDER
align RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --layer=0
    --layer=0: the decoder has layers 1 to 1
align RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --layer=2
    --layer=2: the decoder has layers 1 to 1
align RUN --src={tmp}/corpus/test.en --tgt={tmp}/corpus/test.de --checkpoint=7
    --checkpoint=7 is not there

quantize RUN --output={tmp}/corpus | {tmp}/corpus is not empty | another --output
quantize RUN --output={tmp}/new --checkpoint=7 | --checkpoint=7 is not there
prune RUN --heads=0.5 --output={tmp}/corpus | {tmp}/corpus is not empty | another --output
prune RUN --heads=0.5 --output={tmp}/new --seed=3 | --seed=3 changes nothing without --by=random
prune RUN --heads=0.5 --output={tmp}/new --by=random --seed=-1 | --seed=-1 is below 0
prune RUN --heads=0.5 --output={tmp}/new --config.data.path={tmp}/nowhere | is not a folder

attention RUN --explain=leave_one_out --kind=decoder x | hides nothing of the translation
attention RUN A dog | attention takes one SENTENCE, not 2 arguments: put it in quotation marks
attention RUN --output=x.png | attention needs SENTENCE: what to translate
attention RUN ' \t' --output={tmp}/heat.png | The sentence is blank
attention RUN '--target= ' x | The target is blank
attention RUN --layer=2 x | --layer=2: this model has layers 1 to 1
attention RUN --layer=0 x --output={tmp}/x.html | --layer=0: this model has layers 1 to 1
attention RUN --head=5 x | --head=5: this model has heads 1 to 2
attention RUN --checkpoint=7 x | --checkpoint=7 is not there
attention RUN --output=no/such/folder/x.png x | its folder is not there
attention RUN --output={tmp}/x.gif x | one of .png, .pdf, .svg, .html, .npz, .json
attention RUN --kind=self x | --kind=self is not one of encoder, decoder, cross, all
attention RUN --kind=all x | --kind=all is more than a picture: name a file that ends in one
attention RUN -5 | Unknown command line flag '5'. A SENTENCE that begins with a dash follows --
attention RUN -- -5 --layer=1 | takes one SENTENCE, not 2 arguments: flags come before --.
attention RUN x --output=/proc/x.png | No file can be created there: /proc/x.png.
attention RUN x --output={tmp}/corpus
    --output={tmp}/corpus is a folder: name a file in it
attention RUN x --output={tmp}/run/config.json
    --output={tmp}/run/config.json is a file of the run in {tmp}/run, and would be overwritten
plot | plot needs --workdir=FOLDER
plot --workdir={tmp}/nowhere | {tmp}/nowhere is not the folder of a run
plot RUN --output=curves.pdf | name a file that ends in .png
plot RUN --output={tmp}/corpus | --output={tmp}/corpus is a folder: name a file in it
plot RUN --output=.png | --output=.png: a PNG is written; name a file that ends in .png.
plot RUN --output=/dev/null/x.png | /dev/null. Move it out of the way, or name another file.

average RUN --last=4 | --last=4: {tmp}/run has its last 3 checkpoints (30, 35, 40) | Give 1 to 3
average RUN --last=0 | --last=0: {tmp}/run has its last 3 checkpoints (30, 35, 40)
average RUN --last=-1 | --last=-1: {tmp}/run has its last 3 checkpoints (30, 35, 40)
average RUN --config.decode.beam_size=2 | config.decode.beam_size
average --workdir={tmp}/runs?/run --last=1
    {tmp}/runs?/run: this path contains ? | or rename the folder
export --workdir=a --workdir=b --format=stablehlo --output={tmp}/x
    export takes one --workdir=FOLDER, not several.
export RUN --output={tmp}/x | export needs --format=FORMAT
export RUN --output={tmp}/x --format=onnx | --format=onnx is not one of ctranslate2, huggingface
export RUN --output={tmp}/x --format=huggingface --quantization=int8 | is for --format=ctranslate2
export RUN --output={tmp}/x --format=huggingface --gold=x | is for --format=ctranslate2
export RUN --output={tmp}/x --format=ctranslate2 --gold=x | x.en cannot be read
export RUN --output={tmp}/x --format=ctranslate2 --quantization=bfloat16
    bfloat16 is not one of float32
export RUN --output={tmp}/x --format=huggingface --checkpoint=7 | --checkpoint=7 is not there
export RUN --output={tmp}/corpus --format=huggingface | --output={tmp}/corpus exists
import --workdir={tmp}/new | import needs --from=FOLDER
import --from=nowhere --workdir={tmp}/new | --from=nowhere is not a folder
import --from={tmp}/corpus --workdir={tmp}/corpus --src=en --tgt=de | is the model's own folder
import --from={tmp}/corpus --workdir={tmp}/new --src=en --tgt=de | {tmp}/corpus has no model
import --from={tmp}/corpus RUN --src=en --tgt=de | {tmp}/run holds a run
import --from={tmp}/run --workdir={tmp}/new --src=en --tgt=de
    --from={tmp}/run is a run's folder already
serve RUN --port=70000 | --port=70000 is not in 0..65535
serve RUN --host=a..b | --host=a..b --port=8000 cannot be used
"""


# As long as nobody would type them; and no command at all.
TOO_LONG = {
    "": "name a command first: train, translate, ",
    f"translate RUN --checkpoint={'9' * 5000}": "is not there. Valid: latest",
    f"translate RUN --beam_size={10**30}": " is above 1000",
    f"TRAIN --workdir={{tmp}}/{'x' * 300}": "File name too long: {tmp}/xxx",
    **{
        f"NEW --config.{key}={10**30}": f" is above {KEYS[key].at_most or 2_147_483_647}"
        for key in ("model.d_model", "train.steps", "train.row_length", "vocabulary.size")
    },
}


def shown(case: Sequence[str]) -> str:
    return " ".join(case)[:150]


@pytest.mark.parametrize("case", [*of_table(LINES), *TOO_LONG.items()], ids=shown)
def test_a_wrong_command_line(case, refuse):
    refuse(*case)


# Files that hold something else ------------------------------------------------------------------

Change = str | bytes | Callable[[Path], object]  # what a file holds, or what makes it so


def gone(path: Path) -> None:
    """Removes a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def in_its_place(make: Callable[[Path], object]) -> Change:
    """What puts something else in the place of a file."""

    def change(path: Path) -> None:
        gone(path)
        make(path)

    return change


folder = in_its_place(Path.mkdir)
pipe = in_its_place(os.mkfifo)
file = in_its_place(Path.touch)
link_to_itself = in_its_place(lambda path: path.symlink_to(path.name))


def edited(edit: Callable[[bytes], bytes]) -> Change:
    return lambda path: path.write_bytes(edit(path.read_bytes()))


def gzipped(path: Path) -> None:
    """Puts the beginning of a compressed file in the place of a file."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:999])
    path.unlink()


def gzipped_twice(path: Path) -> None:
    """Compresses a file twice, as a server may, under the name of one compressed once."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(gzip.compress(path.read_bytes())))
    path.unlink()


def config(section: str, **values: object) -> Change:
    """Other values in a config.json."""

    def change(path: Path) -> None:
        tree = json.loads(path.read_text())
        tree.setdefault(section, {}).update(values)
        path.write_text(json.dumps(tree))

    return change


def without_sums(change: Change) -> Change:
    """A change of a run that was made before runs had SHA-256 sums of their files."""

    def both(path: Path) -> None:
        make(path, change)
        gone(path.with_name("run.sha256.json"))

    return both


def make(path: Path, change: Change) -> None:
    if callable(change):
        change(path)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(change.encode() if isinstance(change, str) else change)


LATIN_1 = edited(lambda text: text.replace(b"\n", "\nZoë".encode("latin-1"), 1))
LONGER = edited(lambda text: text + b"Noch eine Zeile .\n")
HALF = edited(lambda whole: whole[: len(whole) // 2])
AN_EPIC = "raise ValueError('several\\n\\nlines')"
WORDS_AS_METRICS = '{"step": 1, "kind": "train", "nats_per_token": "high"}\n'

# file, command: (what the file holds, the words of the error, ...); {file} is the file's path.
FILES: dict[tuple[str, str], list[tuple]] = {
    ("corpus/train.de", "NEW"): [
        (gone, "{file}: no such file, nor train.de.gz; stems there with .de: "),
        (LONGER, "{tmp}/corpus/train.en has 300 lines and {file} has 301"),
    ],
    ("corpus/valid.en", "NEW"): [
        ("", "{file} is empty"),
        (lambda path: path.rename(f"{path}.gz"), "{file}.gz is not a whole gzip file"),
    ],
    ("corpus/train.en", "NEW"): [
        (LATIN_1, "{file}, line 2: not UTF-8", "-t UTF-8"),
        (b"\n" * 300, "None of 300 pairs has a text of data.src='en'"),
        (edited(gzip.compress), "{file} is compressed by gzip: call it train.en.gz"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "{file} is a pointer of"),
        (gzipped, "{file}.gz is not a whole gzip file"),
        (gzipped_twice, "{file}.gz is compressed by gzip twice: gunzip it."),
        (folder, "{file} is a folder; give a regular file"),
        (link_to_itself, "{file}: no such file, nor train.en.gz"),
        (pipe, "{file} is a pipe or a device; give a regular file"),
    ],
    ("preset.py", "NEW"): [
        (AN_EPIC, "{file}, line 1: ValueError: several lines"),
        ("def get_config():\n    '\\\n'; oops\n", "{file}, line 3: NameError: name 'oops'"),
        ("def get_config():\n    return get_config()\n", "{file}, line 2: RecursionError"),
        ("def get_config(): return {3: 4}\n", "3 is not a key of the config"),
        ("def get_config(): return {'model.d_ff': 3}\n", "d_ff is a key of the section model, as"),
        ("async def get_config(): return {}\n", "{file}: get_config returned coroutine, not a"),
    ],
    ("new/thesis.tex", "NEW"): [
        ("", "{tmp}/new is not empty and holds no run. Choose another --workdir")
    ],
    ("run/config.json", "RESUME"): [
        ('{"model": ', "{file} cannot be read: the config, line 1: not JSON"),
        (edited(lambda _: b"[" * 100_000), "{file} cannot be read: the config, line 1: cannot be"),
        ("[]", "{file} cannot be read: the config, line 1: a JSON list"),
        (b"\x80\x04\xff", "{file} cannot be read"),
        (gone, "{tmp}/run has checkpoints and no config.json: put that run's file back"),
    ],
    ("run/config.json", "translate RUN"): [
        (folder, "{tmp}/run has checkpoints and no config.json"),
        (pipe, "{file} is a pipe or a device"),
        (config("model", positions="none"), "{file} was changed: its section model is not what"),
        (config("model", experts=3), "{file} cannot be read: model.experts is not a key of the"),
        (config("serving", port=80), "{file} cannot be read: serving is not a key of the config"),
        (config("model", d_model="16"), "model.d_model='16' is of type str; expected int"),
        (without_sums(config("model", norm="mid")), "model.norm='mid' is not known"),
        (
            without_sums(config("model", d_model=32)),
            "params cannot be restored (ValueError): it is damaged, or not of the model that",
        ),
    ],
    ("run/config.json", "evaluate RUN"): [
        (config("data", path="/moved"), "data.path='/moved' is not a folder"),
    ],
    ("run/run.sha256.json", "average RUN --last=2"): [("{}", "{file} is damaged")],
    ("run/vocabulary.model", "NEW --init_from={tmp}/run"): [(HALF, "{file} was changed")],
    ("run/vocabulary.model", "RESUME"): [
        (without_sums(HALF), "{file} is not a SentencePiece model"),
        (HALF, "{file} was changed", "Put the run's own file back"),
        (gone, "{tmp}/run has checkpoints and no vocabulary.model: put that run's file"),
    ],
    ("run/vocabulary.model", "translate RUN"): [
        (gone, "{tmp}/run has checkpoints and no vocabulary.model: put that run's file"),
        (folder, "{tmp}/run has checkpoints and no vocabulary.model"),
        (pipe, "{file} is a pipe or a device"),
    ],
    ("run/corpus.sha256", "RESUME"): [
        ("", "{file} is empty: put that run's file back"),
        (b"\xff\xfe", "{file}, line 1: not UTF-8"),
    ],
    ("run/metrics.jsonl", "plot RUN --output={tmp}/x.png"): [
        (WORDS_AS_METRICS, '{file}:1 is not metrics (an object with "step", "kind" and numbers)'),
    ],
    ("run/metrics.jsonl", "RESUME"): [
        ("hello\n", "{file}:1 is not metrics"),
        ('{"step": 1}\n'.encode("utf-16"), "{file}:1 is not UTF-8: convert the file"),
        (folder, "{file} cannot be read: Is a directory"),
        (pipe, "{file} is a pipe or a device"),
    ],
    ("run/checkpoints", "RESUME"): [(file, "Cannot write into {file}: it is a file")],
    ("run/checkpoints", "average RUN"): [(gone, "{tmp}/run has no checkpoint yet")],
    ("run/checkpoints", "translate RUN"): [
        (gone, "{tmp}/run has no checkpoint yet"),
        (file, "{tmp}/run has no checkpoint yet"),
    ],
    ("run/checkpoints", "NEW --init_from={tmp}/run"): [
        (gone, "train.init_from={tmp}/run has no checkpoint yet"),
    ],
    ("run/checkpoints/40.sha256.json", "translate RUN"): [
        (folder, "40 is damaged: 40.sha256.json is not a manifest"),
        (b"\x80\xff", "40 is damaged: 40.sha256.json is not a manifest"),
        (pipe, "40 is damaged: 40.sha256.json is not a manifest"),
    ],
    ("run/checkpoints/40/metrics/metrics", "evaluate RUN"): [
        (b"\xff", "40 is damaged: metrics/metrics does not have the SHA-256 sum that was written"),
    ],
    ("run/corpus.sha256", "evaluate RUN --split=valid"): [
        (b"\x80\x04\xff", "{file}, line 1: not UTF-8")
    ],
    ("run/evaluations", "evaluate RUN"): [("a file", "Cannot write into {file}")],
    ("run/averages", "average RUN --last=2"): [
        ("", "Cannot write into {file}/40-last2: Not a directory"),
    ],
    ("text", "evaluate RUN --src={file} --ref={tmp}/corpus/test.de"): [("", "{file} is empty")],
    ("text", "evaluate RUN --src={tmp}/corpus/test.en --ref={file}"): [
        ("\n" * 12, "{file} has no text, so nothing can be scored"),
    ],
    ("text", "score RUN --src={file} --tgt={file}"): [
        ("", "{file} is empty"),
        (b"Zo\xeb\n" * 12, "{file}, line 1: not UTF-8"),
    ],
}
CASES = [(path, line, *case) for (path, line), cases in FILES.items() for case in cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[3]}")
def test_a_file_that_holds_something_else(case, box, refuse):
    path, line, change, *words = case
    make(box / path, change)
    refuse(*(part.replace("{file}", str(box / path)) for part in (line, *words)))


LEARNED = "NEW --config.model.positions=learned --config.model.max_positions=64"
# (split, the text of both its files, the command, the words of the error, ...)
TEXTS = [
    ("train", "\n \n", "NEW", "The training split has no text to make a vocabulary of: check"),
    ("train", "A dog.\n", "NEW", "vocabulary.size=400 is more than the training text supports"),
    ("valid", "\n", "NEW", "None of 1 pairs has a text of data.src='en'"),
    ("valid", "The dog. " * 60, LEARNED, "model.max_positions=64 is too small", "Raise it to "),
]


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case[3])
def test_a_split_that_holds_something_else(case, box, refuse):
    split, text, *words = case
    for suffix in ("en", "de"):
        (box / "corpus" / f"{split}.{suffix}").write_text(text)
    refuse(*words)


def test_a_name_that_ends_in_a_carriage_return(refuse):
    """As in a script from Windows; a terminal would show nothing, or the message overwritten."""
    refuse("translate '--workdir={tmp}/run\r'", "{tmp}/run\\x0d holds no run")


def test_a_damaged_checkpoint(box, refuse):
    checkpoint = box / "run" / "checkpoints" / "40"
    next((checkpoint / "params" / "d").iterdir()).write_bytes(b"")
    refuse("translate RUN", "40 is damaged: params/", "Use other checkpoints")
    gone(checkpoint / "params")
    gone(checkpoint.with_name("40.sha256.json"))
    refuse("translate RUN", "40/params cannot be restored (FileNotFoundError)")


# Importing and exporting -------------------------------------------------------------------------

IMPORT = "import --from={tmp}/model --workdir={tmp}/new"
ENGLISH_GERMAN = "--src=en --tgt=de"


def hugging_face_folder() -> Path:
    return test_export.exported("post", "huggingface")


def opus_folder() -> Path:
    return test_import.opus_folder("one")


def settings(**values: object) -> Change:
    """Other settings in a config.json of Hugging Face."""
    return edited(lambda text: json.dumps({**json.loads(text), **values}).encode())


NO_HEADS = settings(encoder_attention_heads=0, decoder_attention_heads=0)
HUGGING_FACE = [
    ("source.spm", "", "source.spm is not a SentencePie"),
    ("vocab.json", pipe, "vocab.json is a pipe or a device"),
    ("vocab.json", '{"</s>": 1, "a": 1}', "have the same id"),
    ("generation_config.json", '{"num_beams": "four"}', "model: num_beams='four' is not a number."),
    ("config.json", NO_HEADS, "settings cannot be right: model.num_heads=0 is below 1"),
    ("config.json", settings(d_model=10**9), "model.d_model=1000000000 is above"),
    ("config.json", settings(d_model=10**6), "and the settings say d_model"),
]
OPUS = [
    ("target.spm", "{}", "target.spm is not a Sente"),
    ("decoder.yml", "beam-size: four", "decoder.yml: beam-size='four' is not a number."),
    ("decoder.yml", "normalize: [1]", "decoder.yml: normalize=[1] is not a number."),
    ("decoder.yml", "models: model.npz", "decoder.yml: models='model.npz' is not a list of files."),
]
IMPORTS = [(hugging_face_folder, *case) for case in HUGGING_FACE]
IMPORTS += [(opus_folder, *case) for case in OPUS]


@pytest.mark.parametrize(("make_folder", "name", "change", "words"), IMPORTS)
def test_a_model_to_import_with_a_broken_file(make_folder, name, change, words, box, refuse):
    shutil.copytree(make_folder(), box / "model")
    make(box / "model" / name, change)
    refuse(f"{IMPORT} {ENGLISH_GERMAN}", words)


def test_a_model_to_import_without_languages(box, refuse):
    shutil.copytree(opus_folder(), box / "model")
    refuse(f"{IMPORT} '--src= ' --tgt=../de", "'../de': name the two languages: --src=en --tgt=de")


def test_finetuning_of_a_folder_that_was_not_imported(box, refuse):
    shutil.copytree(hugging_face_folder(), box / "model")
    line = "train --config=finetune:{tmp}/model --workdir={tmp}/new"
    refuse(line, "{tmp}/model is a model of Hugging Face, not a run. Make a run of it: ")


def test_an_imported_run_has_no_text_of_its_own(box, refuse):
    shutil.copytree(test_import.imported("one"), box / "moved")  # data.path is the old place
    words = "{tmp}/moved was imported and has no text of its own", "--src=FILE"
    refuse("evaluate --workdir={tmp}/moved", *words)
    refuse("prune --workdir={tmp}/moved --heads=0.5 --output={tmp}/new", *words)


@pytest.mark.parametrize(
    ("output", "name", "content", "words"),
    [
        ("gs://bucket/x", "", "", "--output=gs://bucket/x is not a folder of a file system"),
        ("{tmp}/preset.py/x", "", "", "--output={tmp}/preset.py/x cannot be written: Not a direct"),
        ("{tmp}/link", "", "", "--output={tmp}/link cannot be written: File exists."),
        (
            "{tmp}/out",
            "evaluations/x.json",
            '{"checkpoint": "0", "bleu": "high"}',
            "x.json: bleu='high' is not a number. Remove the file.",
        ),
        ("{tmp}/out", "corpus.sha256", b"\xff\xfe", "/corpus.sha256, line 1: not UTF-8"),
    ],
)
def test_a_run_that_cannot_be_exported(output, name, content, words, box, refuse):
    shutil.copytree(test_export.run_of("post"), box / "post")
    (box / "link").symlink_to("nothing")
    if name:
        make(box / "post" / name, content)
    refuse(f"export --workdir={{tmp}}/post --format=huggingface --output={output}", words)
