"""Training, and a run's model, in a Python program: translations, scores, logits, attention."""

import functools
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import jax
import numpy as np

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import KEYS, Config, is_whole
from transformer_jax.decoding.lines import END, LineTranslator, Translation
from transformer_jax.decoding.scoring import Forced, forced_logits
from transformer_jax.errors import ConfigError, RunError, UserError
from transformer_jax.evaluation.alignment import WordAlignment, align_words
from transformer_jax.evaluation.attention import EXPLAINED, KINDS, Attention, pair_attention
from transformer_jax.evaluation.explanations import EXPLANATIONS
from transformer_jax.model.attention.maps import uses_of
from transformer_jax.reporting.plots import attention_figure, shown_by_notebooks
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.use.command_line import root_logger_unchanged, shown_log
from transformer_jax.use.loading import LoadedModel, load_model, pairs_of_split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_jax.evaluation.bleu import Scores

Folder = str | os.PathLike[str]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_python_s_words(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, whose errors name arguments and keys where a command would name flags."""

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except UserError as error:
            parts = str(error).split("`")  # a command between backticks stays one
            parts[::2] = [re.sub(r"(?<![\w'-])--(?:config\.)?(?=\w)", "", x) for x in parts[::2]]
            error.args = ("`".join(parts),)
            raise

    return call


class PairLogits(NamedTuple):
    """The logits of a given translation; row l is for predicting its subword l."""

    logits_LV: np.ndarray  # float32 [target subwords, vocabulary]; an ensemble's log probabilities
    ids_L: np.ndarray  # int [target subwords], the translation's own ids, EOS last
    subwords: list[str]  # the same as texts


class AttendedSentence(NamedTuple):
    """A sentence, its translation, and the attention weights of the pair."""

    source: str
    translation: str
    checkpoint: str
    kinds: dict[str, Attention]  # "encoder", "decoder" and "cross": those that the model has
    is_given: bool = False  # whether the translation was given, not found by search
    explain: str | None = None  # the method, if `kinds` are not weights but an explanation

    @_in_python_s_words
    def plot(
        self, kind: str = "cross", layer: int | None = None, head: int | None = None
    ) -> "Figure":
        """A figure of one layer: a heat map of each head.

        Args:
          kind: "encoder", "decoder" or "cross".
          layer: number from 1; None: the last.
          head: number from 1 of a head to draw alone; None: all.

        Raises:
          ConfigError: the model has no such kind, layer or head.
        """
        if not isinstance(kind, str) or kind not in self.kinds:
            raise ConfigError(f"kind={kind!r}: this model has {', '.join(self.kinds)}.")
        for name, value in (("layer", layer), ("head", head)):
            is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if value is not None and not is_whole:
                raise ConfigError(f"{name}={value!r} is not a whole number.")
        found = self.kinds[kind] if head is None else self.kinds[kind].of_head(head)
        layers = len(found.weights_NHLM)
        number = layers if layer is None else layer
        if not 1 <= number <= layers:
            raise ConfigError(f"layer={layer}: this model has layers 1 to {layers}.")
        title, labels = f"{KINDS[kind].title}, layer {number} of {layers}", None
        if self.explain:
            title = f"{EXPLAINED[kind].title}, by {self.explain}"
            labels = "", "translation", EXPLANATIONS[self.explain].unit
        weights_HLM = found.weights_NHLM[number - 1]
        pieces = found.attended, found.attending
        return shown_by_notebooks(
            attention_figure(weights_HLM, *pieces, title, found.heads, labels)
        )


@_in_python_s_words
def load(
    workdir: Folder | Sequence[Folder], checkpoint: str | int = "latest", **decode_changes: Any
) -> "Run":
    """Loads the model of a run's folder, or of several, onto this process's devices.

    Args:
      workdir: the run's folder; a list of folders loads an ensemble, the mean of probabilities.
      checkpoint: "latest", "best", "average", a step, or an average's name, such as "40-last5".
      decode_changes: keys of the config's section `decode` in place of the run's: beam_size=1.

    Raises:
      UserError: the folder has no run or no such checkpoint, or a key or its value is wrong.
    """
    given: list[Any] = list(workdir) if isinstance(workdir, list | tuple) else [workdir]
    for folder in given or [workdir]:
        if not _is_path(folder):
            raise ConfigError(f"{folder!r} names no run's folder: give one, such as 'runs/mine'.")
    for name in decode_changes:
        if name in KEYS and (own := name.removeprefix("decode.")) != name:
            raise ConfigError(f"{name}: load takes keys of decode by their own names: {own}.")
        if f"decode.{name}" not in KEYS and any(f".{key}".endswith(f".{name}") for key in KEYS):
            raise ConfigError(f"{name} cannot change in a trained run: load takes keys of decode.")
    overrides = {f"decode.{name}": value for name, value in decode_changes.items()}
    folders = [os.path.expanduser(os.fspath(folder)) for folder in given]
    with root_logger_unchanged():
        return Run(load_model(folders, str(checkpoint), overrides=overrides))


@_in_python_s_words
def train(
    config: Config | Folder, workdir: Folder, overrides: Mapping[str, Any] | None = None
) -> "Run":
    """Trains a run on this process's devices, or continues it, and loads its last checkpoint.

    Its log goes to standard error, unless the program has set up `logging` itself.

    Args:
      config: a config, or a preset's name or a config file, such as "demo" or "mine.py:big".
      workdir: the run's folder, which is created if it does not exist.
      overrides: dotted keys and their values, such as {"train.steps": 100}.

    Raises:
      UserError: the config, text or folder cannot be used.
      Interrupted: SIGTERM or SIGINT came; a checkpoint has been written.
    """
    from transformer_jax.use.train import train as train_run  # Optax takes long to import

    if not _is_path(workdir):
        raise ConfigError(f"{workdir!r} cannot name a run's folder: give one, such as 'runs/mine'.")
    changes = overrides or {}
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise ConfigError(f"overrides={changes!r:.60} is not a mapping of keys to values.")
    if flags := [name for name in changes if name.startswith("-")]:
        raise ConfigError(f"overrides: {flags[0].split('.', 1)[-1]} is named without dashes.")
    whole: Any = config
    if isinstance(config, str | os.PathLike):
        whole = load_config(os.fspath(config), changes)
    if not isinstance(whole, Config) or not is_whole(whole):
        raise ConfigError(f"{config!r:.60} is not a config: give a Config or a preset's name.")
    if whole is config and changes:
        whole = with_values(whole, changes)
        check(whole, [*changes])  # each has an effect
    folder = os.path.expanduser(os.fspath(workdir))
    with root_logger_unchanged(), shown_log():
        train_run(whole, folder)
    return load(folder)


class Run:
    """A loaded run; each method takes and returns plain text and NumPy arrays.

    Lines with more than decode.max_length subwords are cut there, with a warning in the log.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        """`load` makes one from a run's folder."""
        self.loaded, self.config, self.checkpoint = loaded, loaded.config, loaded.checkpoint

    def __reduce__(self) -> NoReturn:
        raise RunError("A loaded run cannot be pickled: call transformer_jax.load in each process.")

    def __repr__(self) -> str:
        """Where the run is, and what it translates."""
        count = sum(x.size for x in jax.tree.leaves(self.loaded.translator.params))
        about = f"{self.config.data.direction}, {count:,} parameters, checkpoint {self.checkpoint}"
        return f"<Run {' + '.join(self.loaded.folders)}: {about}>"

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line; a blank line has a blank one."""
        return [best.text for [best, *_] in self.n_best(lines, 1)]

    @_in_python_s_words
    def n_best(self, lines: Sequence[str], n: int) -> list[list[Translation]]:
        """The n best translations of each line with their scores, best first; a blank line has one.

        Raises:
          ConfigError: n is below 1 or above what search returns: decode.beam_size, with
            decode.method=mbr decode.samples, with "sample" 1,000.
        """
        listed = _listed(lines)
        translator = self.loaded.line_translator(n)
        found = translator(listed)
        translator.warn_of_cut()
        return found

    @_in_python_s_words
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Forced]:
        """What search would report for these translations: score, log probability, subwords.

        The score is the log probability (nats, summed over the subwords, EOS included) over the
        length penalty. A blank source has only a blank translation, with score 0; any other has
        the score -inf.
        """
        lines = self.loaded.line_translator()
        found = lines.score(*_paired(sources, targets))
        lines.warn_of_cut()
        return found

    @_in_python_s_words
    def evaluate(
        self,
        sources: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        split: str = "test",
    ) -> "Scores":
        """BLEU and chrF of the translations of these sources; writes nothing.

        Args:
          sources: texts; None: those of the run's own split, and its references.
          references: a translation of each source.
          split: "train", "valid" or "test"; read only without sources.

        Raises:
          UserError: the sides differ in length, or the run's text cannot be found.
        """
        from transformer_jax.evaluation.bleu import score

        self.loaded.translating()
        if (sources is None) != (references is None):
            raise ConfigError("sources and references belong together: give both or neither.")
        data, text = self.config.data, "" if references else split
        if sources is None or references is None:
            run = RunFolder(self.loaded.folders[0])
            if not isinstance(split, str):
                raise ConfigError(f"split={split!r:.60}: name a split, such as test.")
            if run.is_imported:
                raise ConfigError(
                    f"split={split!r}: an imported run has no text of its own: give sources and "
                    "references."
                )
            pairs = pairs_of_split(self.config, split, run)
            sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
            if data.src_kind != "text":
                names = map(str.strip, sources)
                sources = [name and os.path.join(data.path or "", name) for name in names]
        given, wanted = _paired(sources, references)
        is_read = data.src_kind != "text"
        languages = data.between(text, self.config.decode.to)
        return score(self.translate(given), wanted, *languages, is_read=is_read)

    @_in_python_s_words
    def logits(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairLogits]:
        """The logits of given translations, each from the translation's own earlier subwords.

        A blank side is read as EOS alone.
        """
        translator = self.loaded.translator
        lines = self.loaded.line_translator()
        src_ids, tgt_ids = self._filled(lines, *_paired(sources, targets))
        target = self.loaded.vocabulary.target
        return [
            PairLogits(logits_LV[:, : target.size], ids_L, list(target.pieces(ids_L)))
            for logits_LV, ids_L in zip(
                forced_logits(translator, src_ids, tgt_ids), tgt_ids, strict=True
            )
        ]

    @_in_python_s_words
    def attention(
        self, source: str, target: str | None = None, explain: str | None = None
    ) -> AttendedSentence:
        """The attention weights of every layer and head between a sentence and its translation.

        Args:
          source: a sentence.
          target: its translation; None: the model's own.
          explain: "rollout", "flow", "norms", "alti", "gradient" or "leave_one_out": how much each
            subword has to do with each subword of the translation (evaluation/explanations.py), as
            `kinds` "cross" and "decoder" of one layer and head; None: the weights.

        Returns:
          `kinds["cross"].weights_NHLM` is float32 [layers, heads, target subwords, source
          subwords]; `.attending` and `.attended` name the subwords of rows and columns.

        Raises:
          UserError: a side is blank, or the model finds no translation.
        """
        translator = self.loaded.one_by_one("attention").translator
        lines = self.loaded.line_translator()
        of_run = self.loaded.model, translator.params, self.loaded.vocabulary
        sides = _paired([source], ["" if target is None else target])
        src_ids, tgt_ids = self._encoded(lines, *sides)
        if not len(src_ids[0]):
            raise ConfigError("The sentence is blank: give one to translate.")
        if target is not None and not len(tgt_ids[0]):
            raise ConfigError("The target is blank: give a translation, or leave it out.")
        if target is None:
            if (own := lines.best(src_ids[0])) is None:
                raise RunError("The model finds no translation; did its training diverge?")
            tgt_ids = [own]
        places = lines.read.places(len(src_ids[0])) if lines.read else None
        found = pair_attention(*of_run, src_ids[0], tgt_ids[0], places=places, explain=explain)
        translation, is_given = lines.text(tgt_ids[0]), target is not None
        return AttendedSentence(source, translation, self.checkpoint, found, is_given, explain)

    @_in_python_s_words
    def align(
        self, sources: Sequence[str], targets: Sequence[str], *, explain: str | None = None
    ) -> list[WordAlignment]:
        """For each word of each target, the source word with the largest attention weight.

        Words are separated by spaces. Each head has its alignment, and so has each layer's mean;
        with `explain`, as for `attention`, there is one layer. No word of a blank side is linked.

        Raises:
          UserError: the model has no layers of encoder-decoder attention to align by, or the
            method cannot explain it.
        """
        model = self.loaded.one_by_one("align").model
        lines = self.loaded.line_translator()
        self.loaded.reading_text("align")
        if "cross" not in uses_of(model):
            raise ConfigError("This model has no layers of encoder-decoder attention to align by.")
        src_ids, tgt_ids = self._filled(lines, *_paired(sources, targets))
        params, train = self.loaded.translator.params, self.loaded.config.train
        full = train.alignment_context == "full" and explain is None
        of_run = model, params, self.loaded.vocabulary
        return list(align_words(*of_run, src_ids, tgt_ids, full_context=full, explain=explain))

    def _filled(
        self, lines: LineTranslator, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        src_ids, tgt_ids = (
            [ids if len(ids) else END for ids in side]
            for side in self._encoded(lines, sources, targets)
        )
        return src_ids, tgt_ids

    def _encoded(
        self, lines: LineTranslator, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        found = lines.encode(sources), lines.encode(targets, is_target=True)
        lines.warn_of_cut()
        return found


def _is_path(folder: Any) -> bool:
    """Whether it can name a folder; no file system has a name with a NUL."""
    path = os.fspath(folder) if isinstance(folder, str | os.PathLike) else ""
    return path != "" and "\0" not in path


def _listed(lines: Sequence[str]) -> list[str]:
    if isinstance(lines, str | bytes):
        raise ConfigError("This takes a list of sentences, not one: put it in brackets.")
    has_axis = getattr(lines, "ndim", 1) == 1  # not 0, and not the 2 of a DataFrame
    if not has_axis or not isinstance(lines, Iterable) or isinstance(lines, Mapping | Set):
        raise ConfigError(f"This takes a list of sentences, not {type(lines).__name__}.")
    listed = list(lines)
    for number, line in enumerate(listed):
        if not isinstance(line, str):
            raise ConfigError(
                f"Sentence {number} (from 0) is of type {type(line).__name__}: {line!r:.60}. Give "
                "texts; a blank sentence is ''."
            )
    return listed


def _paired(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    pairs = _listed(sources), _listed(targets)
    if len(pairs[0]) != len(pairs[1]):
        raise ConfigError(
            f"There are {len(pairs[0])} sources and {len(pairs[1])} targets; give one target for "
            "each source."
        )
    return pairs
