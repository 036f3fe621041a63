"""A run's model, loaded for translation and analysis."""

import copy
import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from transformer_jax.compilation import keep_compiled_programs
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.texts import Text, code
from transformer_jax.decoding.generators import check_n_best
from transformer_jax.decoding.lines import LineTranslator, banned_ids
from transformer_jax.decoding.parallel import translator_for
from transformer_jax.decoding.scoring import check_one_by_one
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.ensemble import Ensemble
from transformer_jax.model.parameters import abstract_params, axis_names
from transformer_jax.parallel.mesh import decoding_mesh, with_shardings
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.features import FeatureReader, how_read
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.vocabulary import Vocabulary, load_vocabulary

NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
log = logging.getLogger(__name__)
TRAINED_WITH = ("model.", "train.", "vocabulary.")  # sections that a trained model keeps
TRAINED_ON = ("train", "valid")  # the splits whose fingerprints a run records


class LoadedModel(NamedTuple):
    """A run's model, ready to translate."""

    config: Config  # the run's, with the overrides
    vocabulary: Vocabulary
    translator: Translator  # holds the model and its parameters
    checkpoint: str  # its name, such as "40" or "40-last5"; of an ensemble: joined by "+"
    folders: tuple[str, ...] = ()  # of the runs

    @property
    def model(self) -> EncoderDecoder:
        """The one model. Raises ConfigError if several runs were loaded."""
        model, *others = self.translator.model.members
        if others:
            raise ConfigError("This is for one model, not for an ensemble: give one run.")
        return model

    def translating(self) -> "LoadedModel":
        """The same. Raises ConfigError if it is a language model."""
        if not self.translator.model.sources:
            raise ConfigError(
                "A language model (model.encoder='none') has no translations to evaluate: its "
                "command is `score --tgt=FILE`."
            )
        return self

    def digest(self) -> str:
        """SHA-256 of the one model's settings and weights."""
        found = hashlib.sha256(repr(self.model.config).encode())
        for x in jax.tree.leaves(jax.device_get(self.translator.params)):
            found.update(x.tobytes())
        return found.hexdigest()

    def one_by_one(self, what: str) -> "LoadedModel":
        """The same. Raises ConfigError, naming `what` asks, if subwords are written all at once."""
        check_one_by_one(self.translator.model, what)
        return self

    def reading_text(self, what: str) -> "LoadedModel":
        """The same. Raises ConfigError, naming `what` asks, if the source is not text."""
        if self.config.data.src_kind != "text":
            raise ConfigError(
                f"{what} is for text, and this run reads data.src_kind="
                f"{self.config.data.src_kind!r}."
            )
        return self

    def line_translator(
        self, n_best: int | None = None, folder: str | Path | None = None, text: str = ""
    ) -> LineTranslator:
        """A new translator of text lines, whose count of cut lines is zero.

        Args:
          n_best: hypotheses per sentence; None: as loaded.
          folder: of the recordings or pictures that lines name (data.src_kind); None: any.
          text: the split or text that the lines are from; "": any.
        """
        translator = self.translator
        if n_best is not None:
            check_n_best(n_best, self.config.decode)
            translator = copy.copy(translator)  # shares the parameters
            translator.n_best = n_best
        data, decode = self.config.data, self.config.decode
        read = FeatureReader(data, folder) if data.src_kind != "text" else None
        tokens = "13a"
        if decode.method == "mbr":
            from transformer_jax.evaluation.bleu import tokens_of_language  # takes long to import

            tokens = tokens_of_language(data.between(text, decode.to)[1])
        return LineTranslator(self.vocabulary, translator, data.targets, read, tokens)


def load_model(
    workdir: str | Sequence[str],
    checkpoint: str = "latest",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    n_best: int = 1,
    coverage_penalty: float | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> LoadedModel:
    """Loads the model of a run's folder; or of several, which predict together.

    Args:
      workdir: the run's folder. Several folders give an ensemble: the mean of their models'
        probabilities, searched with the settings of the first run.
      checkpoint: "latest", "best", "average", a step, or an average's name, such as "40-last5".
      beam_size, length_penalty, coverage_penalty: keys of `decode`; None: the run's.
      n_best: hypotheses per sentence, at most the beam size.
      overrides: dotted keys of `decode`, `data` or `mesh` and their values, in place of the run's.

    Raises:
      UserError: a folder has no run or no such checkpoint, a setting is out of range, or the runs'
        vocabularies differ.
    """
    if kept := [name for name in overrides if name.startswith(TRAINED_WITH)]:
        raise ConfigError(f"{kept[0]} is of training: a trained model keeps it. Leave it out.")
    runs = [RunFolder(folder) for folder in ([workdir] if isinstance(workdir, str) else workdir)]
    flags = {
        "decode.beam_size": beam_size,
        "decode.length_penalty": length_penalty,
        "decode.coverage_penalty": coverage_penalty,
    }
    flags = {name: x for name, x in flags.items() if x is not None}
    if twice := [name for name, x in flags.items() if name in overrides and overrides[name] != x]:
        name = twice[0]
        raise ConfigError(f"{name} is given twice: {flags[name]} and {overrides[name]}.")
    given = {**overrides, **flags}
    configs = [run.read_config() for run in runs]
    config = with_values(configs[0], given)
    check(config, list(given))
    for run, own in zip(runs[1:], configs[1:], strict=True):
        _check_searched(run, own, config.decode, configs[0])
    check_n_best(n_best, config.decode)
    keep_compiled_programs()
    vocabulary = _common_vocabulary(runs)
    name_codes(vocabulary, config)
    mesh = decoding_mesh(config.mesh)
    models = tuple(make_model(own.model, vocabulary.sizes) for own in configs)
    shapes = [with_shardings(abstract_params(one), axis_names(one), mesh) for one in models]
    loaded = [load_params(run, checkpoint, like) for run, like in zip(runs, shapes, strict=True)]
    params, names = zip(*loaded, strict=True)
    name = "+".join(names)
    model = models[0] if len(models) == 1 else Ensemble(models)
    held = params[0] if len(models) == 1 else Ensemble.joined(params)
    folders = tuple(str(run.path) for run in runs)
    decode = config.decode
    searched = f"beam {decode.beam_size}" if decode.method == "beam" else decode.method
    log.info("%s, checkpoint %s, %s", " + ".join(folders), name, searched)
    banned = banned_ids(decode, vocabulary)
    translator = translator_for(decode.method)(model, held, decode, mesh, n_best, banned)
    return LoadedModel(config, vocabulary, translator, name, folders)


def _check_searched(run: RunFolder, config: Config, decode: DecodeConfig, first: Config) -> None:
    """Raises ConfigError if the search of an ensemble's first run does not fit another run."""
    one, other = (
        (own.data.context, set(own.data.directions) or (own.data.src, own.data.tgt))
        for own in (first, config)
    )
    if one != other:
        raise ConfigError(
            f"{run.path} translates {config.data.direction}, and the first run "
            f"{first.data.direction} (data.context={config.data.context} and "
            f"{first.data.context}): the models of an ensemble translate the same."
        )
    if how_read(first.data) != how_read(config.data):
        raise ConfigError(
            f"{run.path} reads its source in another way than the first run (data.src_kind and the "
            "keys of recordings and pictures): the models of an ensemble read the same numbers."
        )
    if first.model.sources != config.model.sources:
        raise ConfigError(
            f"{run.path} has model.sources={config.model.sources}, and the first run "
            f"{first.model.sources}: the models of an ensemble read the same subwords."
        )
    if first.model.parallel or config.model.parallel:
        raise ConfigError(
            "An ensemble is of models that write from left to right, and one of these runs has "
            "model.parallel. Give one run."
        )
    try:
        check(dataclasses.replace(config, decode=decode), ["decode.wait_k"])
    except ConfigError as error:
        raise ConfigError(f"{run.path} cannot be searched like the first run: {error}") from None


def name_codes(vocabulary: Vocabulary, config: Config) -> None:
    """Logs the target languages of an imported model, unless one is chosen."""
    if vocabulary.codes and not config.data.codes and config.decode.to is None:
        codes = ", ".join(sorted(vocabulary.codes))
        log.info("source lines begin with the code of the target language: %.200s", codes)


def _common_vocabulary(runs: Sequence[RunFolder]) -> Vocabulary:
    """The runs' vocabulary; warns of a run that is there twice.

    Raises:
      ConfigError: the runs do not have the same vocabulary.
    """
    if len({run.path.resolve() for run in runs}) < len(runs):
        log.warning("a run is there twice: %s", " and ".join(str(run.path) for run in runs))
    vocabulary = load_vocabulary(runs[0].vocabulary_file)
    for run in runs[1:]:
        load_vocabulary(run.vocabulary_file)  # a file that is missing or damaged is named
        if run.vocabulary_file.read_bytes() != runs[0].vocabulary_file.read_bytes():
            raise ConfigError(
                f"{run.path} has another vocabulary than {runs[0].path}: an ensemble needs one. "
                "Train both on the same data with the same keys of vocabulary, or leave one out."
            )
    return vocabulary


def pairs_of_split(config: Config, split: str, run: RunFolder) -> Sequence[Pair]:
    """A split of the run's corpus, or of the one that other keys name.

    Raises:
      UserError: there is no such split, or an imported run has no text of its own.
    """
    data, own = config.data, run.read_config().data
    if run.is_imported and (data.source, data.path) == (own.source, own.path):
        raise ConfigError(
            f"{run.path} was imported and has no text of its own: name some with --src=FILE "
            "--ref=FILE, or with --config.data.path=FOLDER."
        )
    asked = {"valid": data.valid, "test": data.test}.get(split, (split,))
    texts = [Text.of(one) for one in asked]
    if Text.of(split).weight != 1:
        raise ConfigError(f"{split}: a weight is for training text. Leave it out.")
    if not data.directions and any(one.direction for one in texts):
        raise ConfigError(f"{split}: this run has one direction, {data.direction}. Leave it out.")
    for one in texts:
        if one.direction and one.direction.partition("-")[2] not in data.targets:
            raise ConfigError(f"{split}: the run translates into {', '.join(data.targets)}.")
    if codes := [code(one.tag) for one in texts if one.tag]:
        load_vocabulary(run.vocabulary_file).check_codes(codes)
    corpus = open_corpus(data)
    if split in TRAINED_ON and (data.train, data.valid) == (own.train, own.valid):
        recorded = run.fingerprints()[TRAINED_ON.index(split) :]
        if recorded and recorded[0] != corpus.fingerprint(split):
            log.warning(
                "the split %s is not that of %s: its text has changed, and training may have seen "
                "these pairs",
                split,
                run.path,
            )
    return corpus.split(split)
