"""The `export` command: a run's model as a folder for another engine."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax import __version__
from transformer_jax.api import Run
from transformer_jax.config.changes import with_values
from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.texts import code
from transformer_jax.decoding.lines import banned_ids
from transformer_jax.decoding.scoring import check_one_by_one
from transformer_jax.errors import ConfigError, DataError, UserError
from transformer_jax.evaluation.alignment import Aligner, best_aligner
from transformer_jax.files import new_folder, read_json
from transformer_jax.interop import ctranslate2_out
from transformer_jax.interop.exported import Exported, require_supported
from transformer_jax.interop.huggingface_out import write_huggingface
from transformer_jax.interop.stablehlo import write_stablehlo
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.run_folder import URL, RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.corpora import TextPairs, open_corpus
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.lines import TextLines
from transformer_jax.text.pharaoh import read_alignments
from transformer_jax.text.vocabulary import load_vocabulary
from transformer_jax.use.loading import load_model

log = logging.getLogger(__name__)
FORMATS = ("ctranslate2", "huggingface", "stablehlo")
GOLD_PAIRS = 200  # of the built-in corpus, which choose the head that aligns


def export(
    workdir: str,
    *,
    format: str,
    output: str,
    quantization: str | None = None,
    gold: str | None = None,
    checkpoint: str = "latest",
) -> None:
    """Writes a run's model for another engine, with what turns text into subwords.

    Args:
      format: one of FORMATS.
      output: the folder to write, which must not exist.
      quantization: of CTranslate2's weights, such as "int8"; None: float32.
      gold: for CTranslate2, a stem of files: pairs in the run's languages (STEM.en, STEM.de) and
        their links (STEM.align), by which the head with the lowest alignment error rate is chosen;
        None: model.watched_layer aligns, or for a run on the built-in corpus its own links choose.
      workdir, checkpoint: see `load_model`.

    Raises:
      UserError: there is no such run, checkpoint or format, the format cannot express a part of
        the model, or the folder cannot be written.
    """
    folder = Path(output)
    run = RunFolder(workdir)
    _check_format(format, quantization, gold)
    if URL.match(output):
        raise UserError(f"--output={output} is not a folder of a file system. Name one that is.")
    if folder.exists():
        raise UserError(f"--output={output} exists. Name a folder that does not.")
    config = run.read_config()
    vocabulary = load_vocabulary(run.vocabulary_file)
    made = make_model(config.model, vocabulary.sizes)
    check_one_by_one(made, "export")
    _check_sources(made.sources, config.data)
    params, name = load_params(run, checkpoint, abstract_params(made))
    params = jax.tree.map(np.asarray, params)
    banned = banned_ids(config.decode, vocabulary)
    aligner = _aligner(workdir, name, config, gold) if format == "ctranslate2" else None
    model = Exported(config, params, vocabulary, banned, aligner and aligner[:2])
    about = _facts(run, config.data, name)
    try:
        with new_folder(folder) as whole:
            if format == "ctranslate2":
                ctranslate2_out.write_ctranslate2(model, whole, quantization)
            elif format == "stablehlo":
                write_stablehlo(model, whole)
            else:
                write_huggingface(model, whole, about)
    except OSError as error:
        raise UserError(f"--output={output} cannot be written: {error.strerror}.") from None
    log.info("%s: checkpoint %s of %s", folder, name, run.path)
    log.info("%s", _search(config.decode, format))


def _check_sources(sources: int, data: DataConfig) -> None:
    """Raises UserError if the run does not read text of one sentence."""
    if sources != 1 or data.src_kind != "text" or data.context:
        sentences = sources and max(sources, 1 + data.context)
        reads = f"{sentences} source sentences" if data.src_kind == "text" else data.src_kind
        raise UserError(
            f"The run reads {reads}, and the search that an export has takes lines of one "
            "sentence. Use this run here."
        )


def _check_format(format: str, quantization: str | None, gold: str | None) -> None:
    """Raises UserError if there is no such format, or it has not what is asked of it."""
    if format not in FORMATS:
        raise ConfigError(f"--format={format} is not one of {', '.join(FORMATS)}.")
    if quantization is not None and format != "ctranslate2":
        raise ConfigError(f"--quantization={quantization} is for --format=ctranslate2.")
    if gold is not None and format != "ctranslate2":
        raise ConfigError(f"--gold={gold} is for --format=ctranslate2, which has alignments.")
    known = ctranslate2_out.QUANTIZATIONS
    if quantization not in (None, *known):
        raise ConfigError(f"--quantization={quantization} is not one of {', '.join(known)}.")


def _aligner(workdir: str, checkpoint: str, config: Config, stem: str | None) -> Aligner | None:
    """What aligns best by gold links; None if there are none."""
    require_supported(config, ctranslate2_out.SUPPORTED, ctranslate2_out.FORMAT)
    data = config.data
    if data.directions:  # the heads that align in one direction are taken for all
        src, tgt = data.directions[0].split("-")
        data = dataclasses.replace(data, src=src, tgt=tgt, directions=())
    if stem is not None:
        files = [Path(f"{stem}.{side}") for side in (data.src, data.tgt)]
        pairs: Sequence[Pair] = TextPairs(*map(TextLines, files))
        links = read_alignments(f"{stem}.align", pairs)
    elif data.source == "grammar":
        drawn = open_corpus(data).alignments("valid")[:GOLD_PAIRS]
        pairs = [Pair(" ".join(one.src), " ".join(one.tgt)) for one in drawn]
        links = [one.links for one in drawn]
    else:
        return None
    to: dict[str, Any] = {"decode.to": data.tgt} if config.data.directions else {}
    loaded = load_model(workdir, checkpoint, overrides=to)
    # An engine aligns by the pass that translates, whatever `align` does.
    past = with_values(loaded.config, {"train.alignment_context": "past"})
    run = Run(loaded._replace(config=past))
    found = best_aligner(run.align(*map(list, zip(*pairs, strict=True))), links)
    what = "the mean of heads" if found.head is None else f"head {found.head + 1}"
    log.info(
        "alignments by layer %d, %s: error rate %.3f on %d pairs",
        found.layer + 1,
        what,
        found.error_rate,
        len(pairs),
    )
    return found


def _facts(run: RunFolder, data: DataConfig, checkpoint: str) -> dict[str, str]:
    """Facts for a model card: data, checkpoint, and the scores of its evaluations."""
    corpus = data.name or f"{data.source}, training split {', '.join(data.train)}"
    facts = {
        "checkpoint": checkpoint,
        "written by": f"transformer_jax {__version__}, revision {revision()}",
        "command": f"`transformer-jax export --workdir={run.path} --format=huggingface "
        f"--checkpoint={checkpoint} --output=FOLDER`",
    }
    if known := run.fingerprints():
        facts["data"] = f"{corpus}; fingerprint {known[0][:16]}"
    records = [(read_json(path), path) for path in sorted(run.evaluations.glob("*.json"))]
    # Of two about one text the newer counts. The folder's engine searches with a beam.
    for record, path in sorted(records, key=lambda one: str(one[0].get("date", ""))):
        is_beam = record.get("method", "beam") == "beam"
        if record.get("checkpoint") == checkpoint and "bleu" in record and is_beam:
            if not isinstance(record["bleu"], int | float):
                raise DataError(
                    f"{path}: bleu={record['bleu']!r} is not a number. Remove the file."
                )
            signature = (
                f"beam {record.get('beam_size')}, length penalty {record.get('length_penalty')}, "
                f"{record.get('bleu_signature')}"
            )
            facts[f"sacreBLEU on {record.get('name')}"] = f"{record['bleu']:.1f} ({signature})"
    return facts


def _search(decode: DecodeConfig, format: str) -> str:
    """Which search of the engine is that of the run's settings, or nearest to it."""
    others: dict[str, Any] = {"method": "beam", "groups": 1, "coverage_penalty": 0.0}
    others |= {"dtype": None, "weights": None}  # what every engine has
    given = {name: getattr(decode, name) for name in others}
    own = [f"decode.{name}={value!r}" for name, value in given.items() if value != others[name]]
    call = _call(decode, format)
    if decode.to is not None and format != "stablehlo":  # whose folder adds the code
        call += f"; begin every line with {code(decode.to)}, as decode.to does here"
    if not own:
        return f"the same search there: {call}"
    return f"{' and '.join(own)}: ours alone; the nearest search there: {call}"


def _call(decode: DecodeConfig, format: str) -> str:
    """The call of the engine that searches with a beam as the run does."""
    if format == "ctranslate2":
        longest = decode.max_length + decode.max_extra_length - 1  # it does not count EOS
        call = f"max_input_length=0, min_decoding_length={decode.min_length}, "
        call += f"max_decoding_length={longest}, "
        if decode.banned_subwords:
            call += f"suppress_sequences={[[one] for one in decode.banned_subwords]}, "
        call += f"beam_size={decode.beam_size}, length_penalty={decode.length_penalty:g}"
        if decode.no_repeat:
            call += f", no_repeat_ngram_size={decode.no_repeat}"
        call = f"translate_batch(..., {call})"
    elif format == "stablehlo":
        own = " and without decode.min_length and decode.no_repeat"
        own *= bool(decode.min_length or decode.no_repeat)
        return f"search.py of the folder, with {decode.beam_size} beams, no length penalty{own}"
    else:
        call = "generate(...) with the folder's generation_config.json"
    if decode.penalty == "gnmt" and decode.length_penalty:
        call += "; it divides by length^alpha, ours by GNMT's penalty: at alpha 0 both are the same"
    return call
