"""The `evaluate` command: translates a split or a file, and writes translations and scores."""

import dataclasses
import datetime
import functools
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from transformer_jax import __version__
from transformer_jax.config.schema import Config
from transformer_jax.config.texts import Text, directed
from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.evaluation.bleu import Scores, as_dict, format_scores, score
from transformer_jax.evaluation.latency import format_latency, mean_latency, wait_k_delays
from transformer_jax.files import in_the_way
from transformer_jax.parallel import processes
from transformer_jax.reporting.plots import printable
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.evaluations import PART, evaluation_path, text_digest, write_evaluation
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.by_position import evenly_spaced
from transformer_jax.text.corpora import TextPairs, open_corpus
from transformer_jax.text.documents import InContext
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.lines import TextLines
from transformer_jax.text.mixture import as_asked, plain_parts
from transformer_jax.training.line_checks import LANGUAGE_GAP, Language, warn_of_texts
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model, pairs_of_split

log = logging.getLogger(__name__)
COMPARED_LINES = 1_000  # of a text, whose language is compared with that of the translations


class Evaluation(NamedTuple):
    """The scores of some translations, and the files and texts that they belong to."""

    scores: Scores
    hypotheses: Path  # a file with one translation a line
    pairs: Sequence[Pair]  # sources and references, in that file's order
    # Of each stem of data.test or data.valid, if that split has several.
    parts: Mapping[str, "Evaluation"] = MappingProxyType({})


class _Text(NamedTuple):
    """A text to translate, under the name of its evaluation."""

    name: str
    split: str | None  # None: files of --src and --ref
    with_references: Sequence[Sequence[Pair]]  # [references][lines]; the sources are the same
    is_part: bool = False  # of a split of several texts

    @property
    def pairs(self) -> Sequence[Pair]:
        """The sources with the first references."""
        return self.with_references[0]


def evaluate(
    workdir: str | Sequence[str],
    *,
    split: str | None = None,
    src: str | None = None,
    ref: Sequence[str] | None = None,
    checkpoint: str = "latest",
    beam_size: int | None = None,
    examples: int = 0,
    source: str | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> Evaluation:
    """Translates a split or a file; prints the scores and writes them to WORKDIR/evaluations.

    Names there end in a hash of texts and settings: no evaluation overwrites another one. If
    data.test names several stems, each of them is scored too, with the result and the files that
    `split=STEM` would give, and then all of them together.

    Args:
      split: "train", "valid", "test", a file stem or TFDS split; "test:de-fr"; None: "test".
      src: a file of source lines to use instead of a split, together with `ref`.
      ref: the files of its references, one or several.
      workdir, checkpoint, beam_size: see `load_model`.
      examples: number of evenly spaced translations to print with their sources and references.
      source: with decode.to, the direction of the split; None: what `split` says.
      overrides: keys of `decode` and `data` and their values.

    Raises:
      UserError: there is no such run, checkpoint, split or file, or the folder cannot be written.
    """
    _check(split, src, ref, examples)
    name, overrides = _directed(split or "test", src, source, overrides)
    _check_overrides(name, src, overrides)
    folders = [workdir] if isinstance(workdir, str) else list(workdir)
    run = RunFolder(folders[0])
    # Read first, so that a missing file is reported before the model is loaded.
    text = None if src is None else _text_of_files(src, ref or ())
    loaded = load_model(folders, checkpoint, beam_size, overrides=overrides).translating()
    if text is None:
        text = _Text(name, name, [pairs_of_split(loaded.config, name, run)])
    parts = _parts_of(loaded.config, text)
    for one in parts or [text]:  # lines of a file may begin with codes of languages
        if one.split is not None or not loaded.config.data.codes:
            for pairs in one.with_references:
                warn_of_texts(pairs, loaded.config)
    processes.first_does(lambda: _make_folder(run.evaluations))
    named = Path(src).parent if src else loaded.config.data.path  # where files are that lines name
    translator = loaded.line_translator(folder=named, text=text.split or "")
    log.info("translating %d lines of %s", len(text.pairs), text.name)
    hypotheses = [best.text for best, *_ in translator.shared(_lines_of(text, loaded))]
    translator.warn_of_cut()
    keep = functools.partial(_keep, loaded, translator, folders)
    found = dict[str, Evaluation]()
    rest = iter(hypotheses)
    for part in parts:
        own = list(itertools.islice(rest, len(part.pairs)))
        found[part.name] = keep(part, own, is_one_of_many=True)
    whole = keep(text, hypotheses, is_one_of_many=bool(parts))
    _print_examples(text.pairs, hypotheses, examples if processes.is_first() else 0)
    return whole._replace(parts=found)


def _lines_of(text: _Text, loaded: LoadedModel) -> list[str]:
    """The source lines to translate; a file's sentences get those before them (data.context)."""
    context = loaded.config.data.context if text.split is None else 0
    add_context = InContext(context, loaded.vocabulary.codes)
    return [add_context(pair.src) for pair in text.pairs]


def _directed(
    split: str, src: str | None, source: str | None, overrides: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """The split in its direction, and the overrides without the target language that it names."""
    target = overrides.get("decode.to")
    if src is not None or source is target is None:
        if source is not None:
            raise ConfigError("--from is for a split; with --src=FILE leave it out.")
        return split, overrides
    if source is None or target is None:
        raise ConfigError("--from and --to belong together: the direction of a split.")
    if source == target:
        raise ConfigError(f"--from={source} --to={target}: name two different languages.")
    if ":" in split:
        raise ConfigError(f"--split={split} has a direction already: leave --from and --to out.")
    others = {key: value for key, value in overrides.items() if key != "decode.to"}
    return f"{split}:{source}-{target}", others


def _check_overrides(name: str, src: str | None, overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError if a key of data changes nothing."""
    if src is not None and (unread := sorted(x for x in overrides if x.startswith("data."))):
        raise ConfigError(f"--config.{unread[0]} changes nothing with --src=FILE: leave one out.")
    for own in ("test", "valid"):
        if f"data.{own}" in overrides and name.partition(":")[0] != own:
            raise ConfigError(f"--config.data.{own} changes nothing with --split={name}.")


def _keep(
    loaded: LoadedModel,
    translator: LineTranslator,
    folders: Sequence[str],
    text: _Text,
    hypotheses: Sequence[str],
    is_one_of_many: bool,
) -> Evaluation:
    """Scores a text's translations, prints the scores, and writes both into the first folder.

    One of many texts is named in print.
    """
    config = loaded.config
    sources = [pair.src for pair in text.pairs]
    references, *others = [[pair.tgt for pair in one] for one in text.with_references]
    languages = config.data.between(text.split or "", config.decode.to)
    is_read = config.data.src_kind != "text"
    scores = score(hypotheses, references, *languages, others, is_read)
    if is_read and others:
        log.info("word and character errors count against the first references alone")
    if not is_read and _has_language_of(hypotheses, sources, references):
        log.warning(
            "%s: most translations look like the sources, not like the references; are the "
            "sources in %s, and the references in %s?",
            printable(text.name),
            *languages,
        )
    settings = {
        "split": text.split,
        "src_sha256": text_digest(translator.content(sources)),
        "ref_sha256": text_digest(itertools.chain(references, *others)),
        "checkpoint": loaded.checkpoint,
        **dataclasses.asdict(config.decode),
        **({"ensemble": list(folders)} if len(folders) > 1 else {}),
    }
    path = evaluation_path(RunFolder(folders[0]).evaluations, text.name, settings)
    if processes.is_first():
        about: dict[str, Any] = {"name": text.name, **_files(text.with_references)}
        about |= {PART: True} if text.is_part else {}
        about |= {
            **settings,
            **as_dict(scores),
            "device": jax.devices()[0].device_kind,
            "devices": jax.device_count(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "revision": revision(),
        }
        about |= _latency(loaded, translator, _lines_of(text, loaded), hypotheses, references)
        write_evaluation(path, hypotheses, about)
        log.info("hypotheses and scores: %s", path.with_suffix(".*"))
        if is_one_of_many:
            print(f"{printable(text.name)}, {len(sources):,} lines")
        print(format_scores(scores))
    return Evaluation(scores, path, text.pairs)


def _latency(
    loaded: LoadedModel,
    translator: LineTranslator,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
) -> dict[str, Any]:
    """How far a wait-k model lags behind, in subwords with EOS; empty for other models.

    An ensemble waits for the member that reads most.
    """
    waits = [member.config.wait_k for member in translator.translator.model.members]
    known = [k for k in waits if k is not None]
    if len(known) < len(waits):
        return {}
    lengths = [len(ids) for ids in translator.encode(sources)]
    # Only sources are cut at decode.max_length. A blank translation has no EOS either.
    encode = loaded.vocabulary.target.encode_lines
    of_output = [len(ids) + 1 if len(ids) else 0 for ids in encode(hypotheses)]
    of_reference = [len(ids) + 1 for ids in encode(references)]
    pairs = zip(lengths, of_output, strict=True)
    delays = [wait_k_delays(max(known), source, target) for source, target in pairs]
    latency = mean_latency(delays, lengths, of_reference)
    log.info(format_latency(latency))
    return {"latency": latency._asdict()}


def _check(split: str | None, src: str | None, ref: Sequence[str] | None, examples: int) -> None:
    """Raises ConfigError if the flags do not fit together."""
    if (src is None) != (not ref):
        raise ConfigError("--src and --ref belong together: sources and their references.")
    if split is not None and src is not None:
        raise ConfigError(f"--split={split} and --src={src}: give only one of them.")
    if examples < 0:
        raise ConfigError(
            f"--examples={examples}: give the number of translations to print, 0 or more."
        )


def _has_language_of(
    hypotheses: Sequence[str], sources: Sequence[str], references: Sequence[str]
) -> bool:
    """Whether translations have the trigrams of the sources rather than of the references."""
    some = range(0, len(hypotheses), max(1, len(hypotheses) // COMPARED_LINES))
    own, *others = ([side[i] for i in some] for side in (hypotheses, sources, references))
    source, reference = (Language(side).nats(own) for side in others)
    return source < reference - LANGUAGE_GAP


def _print_examples(pairs: Sequence[Pair], hypotheses: Sequence[str], examples: int) -> None:
    """Prints that many evenly spaced pairs with their translations."""
    for i in evenly_spaced(len(pairs), examples):
        source, reference = map(printable, pairs[i])
        print(f"\nsource      {source}\nreference   {reference}")
        print(f"translation {printable(hypotheses[i])}")


def _text_of_files(src: str, ref: Sequence[str]) -> _Text:
    """The sources, with each file of references."""
    sources = TextLines(Path(src))
    if len({os.path.realpath(file) for file in ref}) < len(ref):
        raise ConfigError(f"--ref={','.join(ref)}: a file of references is there twice.")
    references = [TextPairs(sources, TextLines(Path(file))) for file in ref]
    for file, pairs in zip(ref, references, strict=True):
        if not any(pair.tgt.strip() for pair in pairs):
            raise DataError(f"--ref={file} has no text, so nothing can be scored.")
        if blank := sum(bool(pair.src.strip()) > bool(pair.tgt.strip()) for pair in pairs):
            log.warning("--ref=%s: %d of %d references are blank", file, blank, len(pairs))
    return _Text(Path(src).name, None, references)


def _parts_of(config: Config, text: _Text) -> list[_Text]:
    """What data.test or data.valid joins, one text for each of its stems; empty if it has one.

    Of a run with several directions, one for each stem and direction, or each in the asked one.
    """
    asked = Text.of(text.split or "")
    given = {"valid": config.data.valid, "test": config.data.test}.get(asked.stem, ())
    is_named = asked.direction or asked.tag
    every = directed(map(Text.of, given), config.data.directions)
    stems = [one.name for one in (as_asked(asked, given) if is_named else every)]
    if len(stems) < 2:
        return []
    parts = []
    for stem in stems:
        # Not `split(stem)`: a stem may have the name of another split.
        alone: dict[str, Any] = {asked.stem: (stem,)}
        corpus = open_corpus(dataclasses.replace(config.data, **alone))
        parts.append(_Text(stem, stem, [corpus.split(asked.stem)], is_part=True))
    # The built-in corpus has one text, whatever data.test says.
    return parts if sum(len(part.pairs) for part in parts) == len(text.pairs) else []


def _make_folder(path: Path) -> None:
    """Creates the folder before the work begins. Raises RunError if it cannot be written."""
    if wrong := in_the_way(path):
        raise RunError(
            f"Cannot write into {path}: {wrong}. Make it writable, or copy the run elsewhere."
        )
    path.mkdir(exist_ok=True)


def _files(texts: Sequence[Sequence[Pair]]) -> dict[str, list[str]]:
    """The absolute paths of the text files of sources and references; none of other corpora."""
    files = [part for text in texts for part in plain_parts(text) if isinstance(part, TextPairs)]
    sources = dict.fromkeys(str(one.path.absolute()) for pairs in files for one in pairs.files[:-1])
    references = [str(pairs.files[-1].path.absolute()) for pairs in files]
    return {"src_files": list(sources), "ref_files": references}
