"""The paper's figures: positions and learning rate; attention and BLEU by length of a run.

    python -m experiments.figures                                # figures that need no run
    python -m experiments.figures --workdir=RUN                  # also those of a run's model

In the paper: sinusoids, which let the model attend to relative positions (section 3.5); the
learning rate of equation 3 (section 5.3); heads that follow syntax and anaphora (figures 3 to 5).
The paper does not report BLEU by the length of the source.

How to read it: index.html explains each picture. table.md has the numbers, the command, the date
and the device; bleu_by_length.json has the numbers of the last picture without rounding.
"""

import datetime
import json
import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.files import make_folder, write_atomically
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Table, Text, write_report
from transformer_jax.reporting.plots import (
    BLUE,
    GREEN,
    VERMILION,
    finish_axes,
    new_figure,
    save_figure,
)
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.statistics import tokens_of
from transformer_jax.text.vocabulary import LANGUAGE
from transformer_jax.use.command_line import Flag, parse_experiment, run_main
from transformer_jax.use.loading import NO_OVERRIDES, load_model, pairs_of_split

log = logging.getLogger("experiments.figures")
RECORDED = "docs/results/figures"
# A sentence of the built-in corpus's test split with a relative clause and a separable verb.
SENTENCE = "The engineer whose grandfather they are greeting is bringing back his knife."
FLAGS = [
    Flag("workdir", str, "RUN", "a run's folder, for the figures that need a model"),
    Flag("sentence", str, "TEXT", "sentence for attention (the split's first, or a built-in one)"),
    Flag("split", str, "NAME", "split of the run's corpus to translate", default="test"),
    Flag("checkpoint", str, "WHICH", "latest, best, average or a step", default="latest"),
    Flag("out", str, "FOLDER", "where pictures, table.md and page go", default=RECORDED),
]


class Asked(NamedTuple):
    """The values of the command line."""

    out: Path
    workdir: str | None
    sentence: str | None  # None: see sentence_of
    split: str
    checkpoint: str
    overrides: Mapping[str, Any] = NO_OVERRIDES  # keys of the config, such as where the text is now


# Positions ---------------------------------------------------------------------------------------

POSITIONS, D_MODEL = 50, 128
PLACES = (50, 100, 200)
REACH = 50


def position_products(d_model: int, positions: Sequence[int], offsets: Sequence[int]) -> np.ndarray:
    """PE(pos) · PE(pos + k) of the sinusoids: float64 `[positions, offsets]`.

    Args:
      d_model: even.
      positions: pos, each with pos + k >= 0 for every k.
      offsets: k.

    Source: Vaswani et al. 2017, section 3.5.
    """
    from transformer_jax.model.positions.choices import sinusoids

    table_LD = sinusoids(max(positions) + max(offsets) + 1, d_model).astype(np.float64)
    others = np.add.outer(np.array(positions), np.array(offsets))
    return np.einsum("PD,PKD->PK", table_LD[list(positions)], table_LD[others])


def draw_positions(asked: Asked) -> list[Part]:
    """Draws the table of sinusoids as a heat map, and the dot products of its rows."""
    from transformer_jax.model.positions.choices import sinusoids

    figure = new_figure(7.5, 3.6)
    axes = figure.add_subplot()
    table_LD = sinusoids(POSITIONS, D_MODEL)
    image = axes.imshow(table_LD, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    figure.colorbar(image, ax=axes, label="PE(position, dimension)", pad=0.02)
    first = f"Sinusoids, d_model = {D_MODEL}: even dimensions are sines, odd ones cosines."
    heat_map = Picture(save_figure(figure, asked.out / "positions.png"), first)

    figure = new_figure(7.5, 3.6)
    axes = figure.add_subplot()
    offsets = range(-REACH, REACH + 1)
    curves = position_products(D_MODEL, PLACES, offsets)
    # The curves coincide: different widths, not only colors, keep each one visible.
    looks = zip(PLACES, curves, (BLUE, VERMILION, "black"), (7.0, 3.5, 1.0), strict=True)
    for position, curve, color, width in looks:
        axes.plot(offsets, curve, color=color, linewidth=width, label=f"pos = {position}")
    finish_axes(axes, "distance k", "PE(pos) · PE(pos + k)")
    axes.legend(frameon=False)
    second = f"Dot products, d_model = {D_MODEL}: the distance k decides, the position does not."
    return [heat_map, Picture(save_figure(figure, asked.out / "position_products.png"), second)]


# Learning rate -----------------------------------------------------------------------------------

WIDTHS = {256: BLUE, 512: VERMILION, 1024: GREEN}
WARMUPS = {4_000: "-", 8_000: "--"}
LAST_STEP = 40_000


def learning_rates(d_model: int, warmup_steps: int, steps: int) -> np.ndarray:
    """The learning rate of updates 1 to `steps`, as training uses it: float64 `[steps]`.

    Source: Vaswani et al. 2017, section 5.3, equation 3.
    """
    from transformer_jax.training.optimizer import learning_rate_schedule

    train = TrainConfig(schedule="rsqrt", warmup_steps=warmup_steps)
    schedule = learning_rate_schedule(train, d_model)
    return np.asarray(schedule(np.arange(steps)), np.float64)  # the schedule counts from 0


def draw_learning_rate(asked: Asked) -> list[Part]:
    """Draws curves for some d_model and warm-up, and lists their peaks."""
    figure = new_figure(7.5, 4.0)
    axes = figure.add_subplot()
    rows = []
    for width, color in WIDTHS.items():
        for warmup, style in WARMUPS.items():
            rates = learning_rates(width, warmup, LAST_STEP)
            name = f"d_model {width:,}, warm-up {warmup:,}"
            steps = np.arange(1, LAST_STEP + 1)
            axes.plot(steps, 1e3 * rates, color=color, linestyle=style, label=name)
            peak = int(rates.argmax())
            rows.append([f"{width:,}", f"{warmup:,}", f"{peak + 1:,}", f"{rates[peak]:.3e}"])
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    finish_axes(axes, "step", "learning rate × 1,000")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    words = "Equation 3: a wider model and a longer warm-up have a lower peak."
    table = Table(["d_model", "warm-up steps", "peak at step", "learning rate there"], rows)
    return [Picture(save_figure(figure, asked.out / "learning_rate.png"), words), table]


# A run's model -----------------------------------------------------------------------------------


def draw_attention(asked: Asked) -> list[Part]:
    """Draws attention of every kind, layer and head while the run's model translates a sentence.

    If the model has none to draw, as with `train.objective=ctc`, the page says so.
    """
    from transformer_jax.api import Run
    from transformer_jax.commands.attention import draw_kinds

    run = Run(load_model(str(asked.workdir), asked.checkpoint, overrides=asked.overrides))
    try:
        found = run.attention(asked.sentence or sentence_of(run, asked.split))
    except UserError as error:
        if asked.sentence:
            raise type(error)(f"--sentence: {error}") from None
        return [Text(f"{error}")]
    return [
        Text(f"Checkpoint {found.checkpoint}."),
        *draw_kinds(found, list(found.kinds), asked.out),
    ]


def sentence_of(run: Any, split: str) -> str:
    """A sentence of the built-in corpus for a run on it; else the first of the run's own split."""
    data = run.config.data
    is_built_in = data.source == "grammar" and data.sources == ("en",) and not data.directions
    if is_built_in and run.loaded.model.sources == 1:
        return SENTENCE
    pairs = pairs_of_split(run.config, split, RunFolder(run.loaded.folders[0]))
    first = next((pair.src for pair in pairs if pair.src.strip()), "")
    return first if data.src_kind == "text" else str(Path(data.path or "", first))


# BLEU by length ----------------------------------------------------------------------------------

LAST_WORDS = (0, 5, 10, 15, 20, 30)  # most words of each bucket; one more bucket has longer sources
RESAMPLES, SEED = 1_000, 0


class Bucket(NamedTuple):
    """Sentences whose sources have similar numbers of words, and their BLEU."""

    words: str  # range of the number of words in a source
    sentences: int
    bleu: float  # 0 to 100
    low: float  # of the 95 % bootstrap interval
    high: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    signature: str = "",
) -> list[Bucket]:
    """sacreBLEU (cased, with the tokens that the signature names) of each bucket with sentences.

    Codes of languages, and what follows a sentence after a tab, do not count as words. The interval
    has the middle 95 % of the BLEU of 1,000 resamples of the bucket's sentences.
    """
    from sacrebleu.metrics.bleu import BLEU

    # It counts the n-grams of each sentence.
    metric = BLEU(tokenize=tokens_of(signature), effective_order=True)
    rows = [
        [*found.counts, *found.totals, found.sys_len, found.ref_len]
        for found in map(metric.sentence_score, hypotheses, [[line] for line in references])
    ]
    counts_S = np.array(rows)
    draw = np.random.default_rng(SEED)
    bucket_of = np.searchsorted(LAST_WORDS, [*map(_length, sources)])
    buckets = []
    for number in np.unique(bucket_of):
        own_S = counts_S[bucket_of == number]
        size = len(own_S)
        # A resample draws `size` sentences with replacement: how often it draws each one.
        times_RS = draw.multinomial(size, np.full(size, 1 / size), RESAMPLES)
        resampled = [_bleu(total) for total in times_RS @ own_S]
        interval = np.percentile(resampled, [2.5, 97.5]).tolist()
        buckets.append(Bucket(_words(number), size, _bleu(own_S.sum(0)), *interval))
    return buckets


def _bleu(counts: np.ndarray) -> float:
    """Corpus BLEU of summed counts: matching n-grams, n-grams, length, the references' length."""
    from sacrebleu.metrics.bleu import BLEU

    *ngrams, length, of_references = counts.tolist()
    sizes = {"sys_len": length, "ref_len": of_references}
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], **sizes, smooth_method="exp").score


def _length(line: str) -> int:
    words = line.partition("\t")[0].split()
    return sum(not LANGUAGE.fullmatch(word) for word in words)


def _words(bucket: int) -> str:
    if bucket == len(LAST_WORDS):
        return f"{LAST_WORDS[-1] + 1}+"
    return f"{LAST_WORDS[bucket - 1] + 1}–{LAST_WORDS[bucket]}" if bucket else "0"


def bleu_figure(buckets: Sequence[Bucket], of_all: float) -> Any:
    """One point with its interval for each bucket, and the whole split's BLEU as a line."""
    # The label of a bucket needs at most 1.2 inches.
    figure = new_figure(max(7.5, 1.2 * len(buckets) + 1), 3.8)
    axes = figure.add_subplot()
    bleu, low, high = (np.array(values) for values in list(zip(*buckets, strict=True))[2:])
    at = np.arange(len(buckets))
    # A bootstrap interval need not contain the point itself.
    errors = np.maximum([bleu - low, high - bleu], 0)
    look = {"fmt": "o", "color": BLUE, "capsize": 4, "clip_on": False}  # a 0 is on the axis
    axes.errorbar(at, bleu, errors, label="95 % interval", zorder=3, **look)
    axes.axhline(of_all, color=VERMILION, linestyle="--", linewidth=1.2, label="all sentences")
    counts = [f"{b.sentences:,} sentence{'s' if b.sentences > 1 else ''}" for b in buckets]
    labels = [f"{bucket.words}\n{count}" for bucket, count in zip(buckets, counts, strict=True)]
    axes.set_xticks(at, labels, fontsize=8)
    axes.set_xlim(-0.5, len(buckets) - 0.5)
    finish_axes(axes, "words of the source", "BLEU")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))  # not magnified if all are 0
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def draw_bleu_by_length(asked: Asked) -> list[Part]:
    """Translates a split, scores it by the length of its sources, and records the numbers."""
    from transformer_jax.commands.evaluate import evaluate

    found = evaluate(
        str(asked.workdir),
        split=asked.split,
        checkpoint=asked.checkpoint,
        overrides=asked.overrides,
    )
    return by_length(found, asked.out)


def by_length(found: Any, out: Path) -> list[Part]:
    """An evaluation's scores by the length of the sources, whose numbers it records in `out`."""
    hypotheses = found.hypotheses.read_text(encoding="utf-8").split("\n")[:-1]
    sources, references = zip(*found.pairs, strict=True)
    scores = found.scores
    if scores.wer is not None:
        return [Text("Sources are recordings or pictures, which have no words.")]
    if sum(" " in line.strip() for line in sources) < len(sources) / 2:
        return [Text("Most sources have no spaces, so their words cannot be counted.")]
    buckets = bleu_by_length(sources, hypotheses, references, scores.bleu_signature)
    record = {"evaluation": found.hypotheses.stem, "direction": scores.direction}
    record |= {"bleu": scores.bleu, "signature": scores.bleu_signature}
    record |= {"resamples": RESAMPLES, "seed": SEED}
    record |= {"buckets": [bucket._asdict() for bucket in buckets]}
    content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_atomically(out / "bleu_by_length.json", content.encode())
    words = f"BLEU of {found.hypotheses.stem} by the length of the source, {scores.direction}."
    figure = bleu_figure(buckets, scores.bleu)
    rows = [[b.words, f"{b.sentences:,}", *(f"{x:.2f}" for x in b[2:])] for b in buckets]
    rows.append(["all", f"{scores.sentences:,}", f"{scores.bleu:.2f}", "", ""])
    return [
        Picture(save_figure(figure, out / "bleu_by_length.png"), words),
        Table(["source words", "sentences", "BLEU", "from", "to"], rows),
        Text(
            f"From and to: the middle 95 % of {RESAMPLES:,} resamples of a bucket's sentences "
            f"(bootstrap, seed {SEED}); with few sentences the range is unreliable. "
            f"{scores.bleu_signature}"
        ),
    ]


# The command -------------------------------------------------------------------------------------


# The title of each group of figures, whether it needs a run, and the function that makes it.
SECTIONS: list[tuple[str, bool, Callable[[Asked], list[Part]]]] = [
    ("Positional encoding (section 3.5)", False, draw_positions),
    ("Learning rate (section 5.3, equation 3)", False, draw_learning_rate),
    ("Attention of every layer and head (figures 3 to 5)", True, draw_attention),
    ("BLEU by the length of the source", True, draw_bleu_by_length),
]


def main() -> None:
    """Makes the figures."""
    values = parse_experiment("figures", __doc__, FLAGS)
    make(Asked(**{**values, "out": Path(values["out"])}))


def make(asked: Asked) -> None:
    """Draws the figures; writes table.md and index.html.

    Raises:
      UserError: the folder is not writable, or the run cannot be used.
    """
    check_moved(asked.overrides)
    make_folder("--out", asked.out)
    if asked.workdir is not None:
        check_translates(asked.workdir)
    parts: list[Part] = [Code(command()), Text(f"{made_by()} Run: {asked.workdir or 'none'}.")]
    for title, needs_run, draw in SECTIONS:
        if needs_run and asked.workdir is None:
            log.info("left out: %s; it needs --workdir", title)
            continue
        parts += [Heading(title), *draw(asked)]
    print(f"page        {write_report(asked.out, 'Figures', parts)}")


def check_moved(overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError if keys are given that say more than where the run's text is now."""
    for name in overrides.keys() - {"data.path"}:
        raise ConfigError(f"--config.{name}: only --config.data.path, for text that has moved.")


def check_translates(workdir: str) -> None:
    """Raises ConfigError if the run has nothing to translate, before anything is drawn."""
    run = RunFolder(workdir)
    has_source = run.read_config().model.encoder != "none"
    if run.is_imported or not has_source:
        why = "was imported and has no text of its own" if has_source else "is a language model"
        raise ConfigError(f"--workdir={workdir} {why}: there is nothing to translate.")


def command() -> str:
    """The command line of this process."""
    return shlex.join(["python", "-m", "experiments.figures", *sys.argv[1:]])


def made_by() -> str:
    """Device, date, and revision of the code."""
    import jax

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; {today}, revision {revision()}."


if __name__ == "__main__":
    run_main(main)
