"""The `import` command: a model that others trained as a run's folder."""

import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.decoding.lines import banned_ids
from transformer_jax.errors import ConfigError, DataError, RunError, UserError
from transformer_jax.files import is_temporary
from transformer_jax.interop.ctranslate2 import FILE, read_ctranslate2
from transformer_jax.interop.huggingface import languages_of, read_huggingface
from transformer_jax.interop.imported import Imported, lengths_for
from transformer_jax.interop.marian import read_marian
from transformer_jax.model.interfaces import Params
from transformer_jax.runs.run_folder import IMPORTED, RunFolder
from transformer_jax.runs.weights import save_weights
from transformer_jax.text.vocabulary import Vocabulary, of_bundle
from transformer_jax.use.loading import name_codes

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "*.spm", "*.model", "*.txt"]  # nothing to unpickle
log = logging.getLogger(__name__)
CODE = re.compile(r"[A-Za-z][\w.+-]*")  # of a language
STABLEHLO_SEARCH = "search.py"  # in an export of interop/stablehlo.py, which takes long to import


def import_model(
    folder: str, workdir: str, *, src: str | None = None, tgt: str | None = None
) -> None:
    """Makes a run of a folder of CTranslate2 (model.bin), Hugging Face (config.json) or Marian.

    The run translates and evaluates, and another run can start from its weights
    (train.init_from), with the model's keys and its vocabulary.

    Args:
      folder: the model's folder, or its name on the Hugging Face hub, such as
        "Helsinki-NLP/opus-mt-en-de"; nothing in it is executed or unpickled.
      workdir: the run's folder, which must be empty or not exist.
      src: source language, such as "en"; None: as the tokenizer's settings say.
      tgt: target language.

    Raises:
      UserError: a file is missing or damaged, the model has parts that ours cannot have, or the
        run's folder cannot be written.
    """
    run = RunFolder(workdir)
    origin = _local(folder)
    if (origin / run.vocabulary_file.name).is_file():
        raise UserError(f"--from={folder} is a run's folder already: give it as --workdir.")
    if run.path.resolve() == origin.resolve():
        raise RunError(f"--workdir={workdir} is the model's own folder. Choose another.")
    run.check_new()
    read, known = _reader(origin)
    languages = str(src or known[0] or ""), str(tgt or known[1] or "")
    if not all(map(CODE.fullmatch, languages)) or languages[0] == languages[1]:
        raise ConfigError(
            f"{ascii(languages[0])}, {ascii(languages[1])}: name the two languages: --src=en "
            "--tgt=de, for example. They choose the rules for punctuation and the scores of "
            "`evaluate`."
        )
    for flag, given, named in zip(("src", "tgt"), (src, tgt), known, strict=True):
        if named is not None and given not in (None, named):
            log.warning("--%s=%s: the folder says %s", flag, given, named)
    model = read(origin, languages)
    config = _config(model, run, languages)
    vocabulary = of_bundle(model.bundle, str(origin))
    try:
        check(config)
        banned_ids(config.decode, vocabulary)
    except ConfigError as error:
        raise ConfigError(f"{origin} asks for what a run cannot have: {error}") from None
    run.check(config)
    write_run(run, config, vocabulary, model.params)
    name_codes(vocabulary, config)
    sizes = " and ".join(str(size) for size in dict.fromkeys(vocabulary.sizes))
    own = model.model
    layers = f"{own.encoder_depth}+{own.decoder_depth} layers of {own.d_model}"
    log.info("%s: %s subwords, %s, %s", run.path, sizes, layers, own.activation)


def write_run(
    run: RunFolder,
    config: Config,
    vocabulary: Vocabulary,
    params: Params,
    how: str = IMPORTED,
    scales: Params = None,
    texts: Sequence[str] = (),
) -> None:
    """Writes a run that was not trained here (`how`), after the checks of its folder.

    `texts` are fingerprints of training and validation text, as far as they are known.

    Until it is whole, its files are in a folder inside that no check sees, which the next call
    removes if this one is killed.
    """
    is_there = run.path.exists()
    run.path.mkdir(parents=True, exist_ok=True)
    for left in filter(is_temporary, run.path.iterdir()):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=run.path) as scratch:
            new = RunFolder(scratch)
            new.claim(config, how, *texts)
            try:
                vocabulary.save(new.vocabulary_file)
                new.seal()
                save_weights(new, params, scales)
            finally:
                new.unlock()
            for path in sorted(new.path.iterdir(), key=new.config_file.__eq__):  # that one last
                path.rename(run.path / path.name)
    except BaseException:
        if not is_there:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _reader(origin: Path) -> tuple[Callable[..., Imported], tuple[str | None, str | None]]:
    """What reads the folder's format, and the languages that it names.

    Raises:
      DataError: the folder is of no format.
    """
    if (origin / FILE).is_file():
        return read_ctranslate2, (None, None)
    if (origin / "config.json").is_file():
        return read_huggingface, languages_of(origin)
    if (origin / STABLEHLO_SEARCH).is_file():
        raise DataError(
            f"{origin} is an export of this package to StableHLO, which has no separate weights. "
            "Use the run that it was made of."
        )
    if any(origin.glob("*.npz")) or any(origin.glob("*.yml")):
        return read_marian, (None, None)
    raise DataError(
        f"{origin} has no model: a folder of CTranslate2 has {FILE}, of Hugging Face config.json, "
        "and of Marian an .npz."
    )


def _local(folder: str) -> Path:
    """The folder; if there is none, that of a model of the hub, which is downloaded.

    Raises:
      UserError: it is neither, or cannot be downloaded.
    """
    if Path(folder).is_dir():
        return Path(folder)
    if not HUB_NAME.fullmatch(folder):
        raise UserError(f"--from={folder} is not a folder; name the one with the model's files.")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(
            f"--from={folder} is not a folder here. If it is a model of the Hugging Face hub: pip "
            "install huggingface_hub."
        ) from None
    log.info("downloading %s from the Hugging Face hub", folder)
    try:
        return Path(snapshot_download(folder, allow_patterns=HUB_FILES))
    except Exception as error:  # no network, no such model, no access: each of many libraries
        raise UserError(
            f"--from={folder} is not a folder here, and the hub does not give it: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from None


def _config(model: Imported, run: RunFolder, languages: tuple[str, str]) -> Config:
    """The run's config; its data is a placeholder, since the run cannot be continued."""
    smallest = int(KEYS["vocabulary.size"].at_least or 0)
    values = {f"decode.{name}": value for name, value in model.decode.items()}
    values |= lengths_for(model.model) | {
        "data.path": str(run.path),
        "data.src": languages[0],
        "data.tgt": languages[1],
        "vocabulary.size": max(smallest, *map(len, model.bundle.tables)),
        "vocabulary.separate": model.bundle.target_pieces is not None,
    }
    return with_values(Config(model=model.model), values)
