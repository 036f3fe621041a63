"""The speed of search, compared with transformers and CTranslate2 with the same weights.

    python benchmarks/decode_speed.py --workdir=RUN --src=FILE --ref=FILE [--turns=5]

RUN is a run that `export` can write for both peers (docs/interop.md), and the script exports it. In
transformers it is a MarianMTModel, or with model.norm=pre a Pegasus. Before the script times
anything, it checks that the logits and log probabilities of the same forced translations agree to
1e-4. All engines read the same subwords and rank hypotheses by the sum of log probabilities,
without a length penalty. So their rules find the same hypothesis, except for rounding and equal
sums:

- candidates: every engine finishes the continuations that end and are among the K best, and keeps
  the K best of those that do not end;
- the end: our search stops when no live hypothesis exceeds the best finished one; CTranslate2 stops
  when the step's best candidate ends; transformers stops when no live hypothesis exceeds the K-th
  finished one.

The limits differ: our search has a limit for each sentence (source + decode.max_extra_length) and
forces EOS there; the peers cut at the largest of these limits. The table counts hypotheses that
reach our limit. If outputs differ, our model scores both by forced decoding. Peers run with the two
fastest of a few settings, chosen on a part of the sentences; in each turn the faster one counts.

Dimension key
  B sentences   L target length   M source length   V vocabulary, padded in ours
"""

import contextlib
import datetime
import importlib.metadata
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.nn import log_softmax
from peers.searching import MODES, Ids, Job, transformers_model
from turns import CALIBRATION, Figures, markdown, middle, processes_by_turns, ratios, spread

from transformer_jax.decoding.scoring import forced_logits, forced_scores
from transformer_jax.errors import UserError
from transformer_jax.evaluation.bleu import score
from transformer_jax.interop.ctranslate2_out import write_ctranslate2
from transformer_jax.interop.exported import Exported
from transformer_jax.interop.huggingface_out import SPECIAL, write_huggingface
from transformer_jax.reporting.provenance import processor
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.batches import padded_sentences
from transformer_jax.text.corpora import TextPairs
from transformer_jax.text.lines import TextLines
from transformer_jax.text.vocabulary import BOS, EOS
from transformer_jax.use.command_line import Flag, parse_experiment, run_main
from transformer_jax.use.loading import LoadedModel, load_model

OURS = "transformer_jax"
FLAGS = [
    Flag("workdir", str, "FOLDER", "a run that both peers can hold", required=True),
    Flag("src", str, "FILE", "source lines", required=True),
    Flag("ref", str, "FILE", "their references", required=True),
    Flag("checkpoint", str, "NAME", "latest, best, average or a step", default="latest"),
    Flag("turns", int, "N", "number of runs of each engine", default=5),
    Flag("beam_size", int, "K", "beam size of beam search", default=4),
    Flag("lines", int, "N", "use only the first N lines; 0: all lines", default=0),
    Flag("tune_lines", int, "N", "number of lines for choosing the peers' settings", default=256),
    Flag("engines", str, "A;B", f"only {OURS} and these, separated by ; (default: all)"),
    Flag("threads", int, "N", "number of threads and CPU cores of each engine", default=2),
    Flag("huge_pages", bool, "", "set glibc.malloc.hugetlb=1 for all engines", default=True),
]
SEARCHING = Path(__file__).parent / "peers" / "searching.py"
OUR_NARROW = "transformer_jax, bfloat16 weights"  # decode.weights; the others: float32
OUR_DEFAULT = "transformer_jax, with its length penalty"  # our default search
ENGINES = {  # name in the table -> engine of searching.py
    OURS: "ours",
    OUR_NARROW: "ours",
    OUR_DEFAULT: "ours",
    "transformers": "transformers",
    "CTranslate2 float32": "ctranslate2",
    "CTranslate2 float32, one batch": "ctranslate2",  # over all cores; the row above: one per core
    "CTranslate2 int8": "ctranslate2",
}
TOLERANCE = 1e-4  # allowed difference of logits and log probabilities, in nats
CHECKED, CHECKED_LENGTH = 8, 48  # number of sentences that are checked, and their subwords
Options = dict[str, Any]
WIDE = {"decode.dtype": "float32"}  # of the model that the peers are checked with


class Text(NamedTuple):
    """The lines of both sides, and the sources encoded."""

    sources: list[np.ndarray]  # int32 [length], EOS included
    references: list[str]


def settings_of(name: str, threads: int, length_penalty: float) -> list[Options]:
    """The settings to try for an engine; ours uses its config, except for the length penalty."""
    if ENGINES[name] == "ours":
        alpha = length_penalty if name == OUR_DEFAULT else 0.0
        narrow = {"decode.weights": "bfloat16"} if name == OUR_NARROW else {}
        return [{"length_penalty": alpha, "keys": WIDE | narrow}]
    if name == "transformers":
        tried = [("sdpa", 32), ("sdpa", 64), ("sdpa", 128), ("eager", 64)]
        return [{"attention": attention, "batch_size": size} for attention, size in tried]
    ways = [{"inter": 1, "intra": threads}, {"inter": threads, "intra": 1}]
    ways = ways[:1] if "one batch" in name else ways
    compute = {"compute": "int8" if "int8" in name else "float32"}
    return [compute | way | {"batch_size": size} for way in ways for size in (32, 64)]


def read_text(loaded: LoadedModel, src: str, ref: str, lines: int) -> Text:
    """Reads the first lines of both files. Raises UserError if a source line is blank."""
    pairs = list(TextPairs(TextLines(Path(src)), TextLines(Path(ref))))[: lines or None]
    encoded = loaded.line_translator().encode([p.src for p in pairs])
    blank = [number for number, ids in enumerate(encoded, 1) if not len(ids)]
    if blank:
        raise UserError(f"{src}, line {blank[0]}, is blank. Remove it: engines skip blank lines.")
    return Text(encoded, [pair.tgt for pair in pairs])


def check_peers(loaded: LoadedModel, job: Job, references: Ids) -> str:
    """Describes the largest differences of the peers' models from ours.

    All models get the same forced translations of a few sentences in one padded batch.

    Raises:
      RuntimeError: a difference is above TOLERANCE.
    """
    import torch
    from ctranslate2 import Translator

    sources = [np.array(ids[-CHECKED_LENGTH:], np.int32) for ids in job.sources[:CHECKED]]
    targets = [np.array([*ids[: CHECKED_LENGTH - 1], EOS]) for ids in references[:CHECKED]]
    src_BM, src_B = padded_sentences(sources, len(sources), CHECKED_LENGTH)
    tgt_BL, _ = padded_sentences(targets, len(targets), CHECKED_LENGTH)
    ours = forced_logits(loaded.translator, sources, targets)

    model = transformers_model(job)
    with torch.inference_mode():
        theirs_BLV = model(
            input_ids=torch.from_numpy(src_BM).long(),
            attention_mask=(torch.arange(CHECKED_LENGTH) < torch.from_numpy(src_B)[:, None]).long(),
            decoder_input_ids=torch.from_numpy(
                np.pad(tgt_BL, ((0, 0), (1, 0)), constant_values=BOS)
            )[:, :-1].long(),
        ).logits.numpy()
    of_transformers = max(
        np.abs(theirs_LV[: len(own_LV)] - own_LV[:, : theirs_LV.shape[1]]).max()
        for theirs_LV, own_LV in zip(theirs_BLV, ours, strict=True)
    )

    translator = Translator(str(Path(job.folder) / "ctranslate2"), compute_type="float32")
    texts = [  # the engine appends EOS
        [[pieces[i] for i in ids[:-1]] for ids in side]
        for side, pieces in zip((sources, targets), job.pieces, strict=True)
    ]
    scored = translator.score_batch(*texts)
    of_ctranslate2 = max(
        np.abs(np.array(one.log_probs) - log_softmax(own_LV)[np.arange(len(ids)), ids]).max()
        for one, own_LV, ids in zip(scored, ours, targets, strict=True)
    )
    checked = (
        "largest differences from our model in forced decoding: transformers' logits "
        f"{of_transformers:.1e}, CTranslate2's log probabilities {of_ctranslate2:.1e}"
    )
    print(checked, file=sys.stderr, flush=True)
    if not max(of_transformers, of_ctranslate2) <= TOLERANCE:
        raise RuntimeError(f"The models are not the same: {checked}.")
    return checked


def make_job(folder: Path, values: dict[str, Any], loaded: LoadedModel, text: Text) -> Job:
    """The job that every engine gets. Exports the model to the folder, for both peers.

    Raises:
      UserError: one of them cannot hold the model.
    """
    config = loaded.config
    params = jax.tree.map(np.asarray, loaded.translator.params)
    model = Exported(config, params, loaded.vocabulary, banned=())
    write_huggingface(model, folder / "transformers", about={})
    with contextlib.redirect_stdout(io.StringIO()):  # standard output is for the tables
        write_ctranslate2(model, folder / "ctranslate2", quantization=None)
    sources = [ids.tolist() for ids in text.sources]
    return Job(
        folder=str(folder),
        workdir=values["workdir"],
        checkpoint=loaded.checkpoint,  # the same in all turns, even if training goes on
        sources=sources,
        pieces=model.pieces,
        norm_epsilon=config.model.norm_epsilon,
        special={name: value for name, value in SPECIAL.items() if value is not None},
        beam_size=values["beam_size"],
        max_tokens=max(map(len, sources)) + config.decode.max_extra_length,
        threads=values["threads"],
        tried=values["tune_lines"],
    )


def command(job: Job, name: str, tried: list[Options]) -> list[str]:
    """The command line of an engine, which writes to `found_file`."""
    files = [str(Path(job.folder) / "job.json"), str(found_file(job, name))]
    return [sys.executable, str(SEARCHING), ENGINES[name], *files, json.dumps(tried)]


def found_file(job: Job, name: str) -> Path:
    """The file to which an engine's process writes its outputs."""
    return Path(job.folder) / f"{name.replace(' ', '_')}.found.json"


def chosen_engines(text: str | None) -> list[str]:
    """Ours and the engines of this text, in the table's order. Raises UserError for others."""
    asked = [name.strip() for name in text.split(";")] if text else list(ENGINES)
    if unknown := [name for name in asked if name not in ENGINES]:
        raise UserError(f"--engines={unknown[0]} is not one of {'; '.join(ENGINES)}.")
    return [name for name in ENGINES if name == OURS or name in asked]


def speed_table(results: dict[str, list[dict[str, float]]], beam_size: int) -> str:
    """Medians over the turns, and ratios of ours to each peer, turn by turn.

    The ratios are those of the faster of float32 and bfloat16 weights.
    """
    names = [name for name in ENGINES if name in results]
    exact = [name for name in (OURS, OUR_NARROW) if name in names]
    ours = {mode: max(exact, key=lambda n: middle(results[n], mode)) for mode in MODES}
    titles = {"greedy": "greedy", "beam": f"beam {beam_size}"}
    head = ["engine"]
    for mode in MODES:
        head += [f"{titles[mode]}: sentences/s", "target subwords/s", "ours / peer"]
    rows = []
    for name in names:
        row = [name]
        for mode in MODES:
            ratio = spread(ratios(results[ours[mode]], results[name], mode))
            row.append(f"{middle(results[name], mode):.1f}")
            row.append(f"{middle(results[name], f'{mode}_tokens'):,.0f}")
            row.append("" if name == ours[mode] else ratio)
        rows.append(row)
    return markdown(head, rows)


def output_table(loaded: LoadedModel, job: Job, text: Text, names: list[str]) -> str:
    """Compares outputs with ours: share of equal ones, whose score is higher if not, BLEU."""
    found = {name: json.loads(found_file(job, name).read_text()) for name in names}
    config = loaded.config.data
    rows = []
    lines = loaded.line_translator()
    for mode in MODES:
        for name in names:
            outputs: Ids = found[name][mode]
            texts = [lines.text(np.array(ids, np.int32)) for ids in outputs]
            bleu = score(texts, text.references, config.src, config.tgt).bleu
            compared = _compare(loaded, text, found[OURS][mode], outputs)
            rows.append([f"{name}, {mode}", *compared, f"{bleu:.2f}"])
    head = ["engine, mode", "same as ours", "not: ours higher / equal / lower", "at our limit"]
    return markdown([*head, "BLEU"], rows)


def _compare(loaded: LoadedModel, text: Text, ours: Ids, theirs: Ids) -> list[str]:
    """Table cells that compare an engine's outputs with ours.

    They are the share of equal outputs; among the other finished ones, whose score is higher; and
    how many outputs reach our limit of their sentence.
    """
    whole = [ids[-1:] == [EOS] for ids in theirs]
    others = [i for i in range(len(ours)) if ours[i] != theirs[i] and whole[i] and ours[i]]
    same = sum(mine == its for mine, its in zip(ours, theirs, strict=True)) / len(ours)
    counts = ""
    if others:
        mine, its = (_log_probs(loaded, text, side, others) for side in (ours, theirs))
        above, below = mine > its + TOLERANCE, mine < its - TOLERANCE
        counts = f"{above.sum()} / {(~above & ~below).sum()} / {below.sum()}"
    extra = loaded.config.decode.max_extra_length
    long = sum(len(i) >= len(s) + extra for i, s in zip(theirs, text.sources, strict=True))
    return [f"{100 * same:.1f} %", counts, str(long)]


def _log_probs(loaded: LoadedModel, text: Text, outputs: Ids, numbers: list[int]) -> np.ndarray:
    """The log probabilities that our model gives some of the outputs."""
    sources = [text.sources[i] for i in numbers]
    targets = [np.array(outputs[i]) for i in numbers]
    return np.array([one.log_prob for one in forced_scores(loaded.translator, sources, targets)])


def describe(
    loaded: LoadedModel,
    job: Job,
    results: dict[str, list[Figures]],
    environment: dict[str, str],
) -> list[str]:
    """Date, device, versions and settings."""
    names = ("jax", "torch", "transformers", "ctranslate2")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    subwords = sum(map(len, job.sources))
    of = loaded.config.model
    chosen = {
        name: {json.dumps(turn[f"{mode}_options"]) for turn in turns for mode in MODES}
        for name, turns in results.items()
        if name in ENGINES
    }
    return [
        f"{datetime.date.today()}, {processor()}, {job.threads} threads an engine; "
        f"{', '.join(versions)}",
        f"{len(job.sources)} sentences, {subwords} source subwords; {of.encoder_depth} + "
        f"{of.decoder_depth} layers, d_model {of.d_model}, {of.num_heads} heads, d_ff {of.d_ff}, "
        f"norm {of.norm}, vocabulary {loaded.vocabulary.size}; "
        f"peers' limit {job.max_tokens} subwords",
        f"environment: {environment or 'unchanged'}",
        "times are from encoded subwords to subwords, without tokenization, loading, compilation "
        "and a first pass over the same sentences",
        *(f"{name}: {' or '.join(sorted(own))}" for name, own in chosen.items()),
    ]


def main() -> None:
    """Prints the report."""
    values = parse_experiment("decode_speed", __doc__, FLAGS, takes_keys=False)
    threads = values["threads"]
    names = chosen_engines(values["engines"])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # the engines inherit it
    loaded = load_model(
        values["workdir"], values["checkpoint"], values["beam_size"], 0.0, overrides=WIDE
    )
    text = read_text(loaded, values["src"], values["ref"], values["lines"])
    environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if values["huge_pages"] else {}
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(Path(folder), values, loaded, text)
        references = [ids.tolist() for ids in loaded.vocabulary.encode_lines(text.references)]
        checked = check_peers(loaded, job, references)
        alpha = RunFolder(values["workdir"]).read_config().decode.length_penalty
        (Path(folder) / "job.json").write_text(json.dumps(job._asdict()))
        contenders = {name: command(job, name, settings_of(name, threads, alpha)) for name in names}
        results = processes_by_turns(contenders, values["turns"], environment)
        outputs = output_table(loaded, job, text, names)
    calibration = f"{CALIBRATION}: {middle(results[CALIBRATION], 'gflops'):.0f}"
    lines = [*describe(loaded, job, results, environment), checked, calibration]
    print("\n".join(lines), speed_table(results, job.beam_size), outputs, sep="\n\n")


if __name__ == "__main__":
    run_main(main)
