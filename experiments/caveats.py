"""Every encoder with every decoder: how well, and how fast, do they translate?

    python -m experiments.caveats

The questions: is a Transformer slower to translate with than other decoders? Is a recurrent network
as good in the decoder? (A third question, few training pairs, has its own experiment:
experiments.few_pairs.)

The small scale has every encoder with every decoder on the built-in corpus, in pre-norm, with 2 + 2
layers of d_model 128 and 1.3 million parameters within 6 %. Only the average decoder with a
Transformer's encoder has more, 1.6 million, because of its gates. Two further rows have a decoder
of one layer. In another, all heads share one head of keys and values (Shazeer 2019), with 1.2
million parameters. No row is tuned: all have the preset's learning rate for 1,000 steps of 1,000
target subwords. Speeds are sentences a second of processor time, so that other work on the machine
counts little, in the second of two passes over 500 sentences of the test split.

The rules, written before the runs. "A Transformer's decoder is slower" than another holds if, with
a Transformer's encoder, its speed is lower in every seed, and fails if it is higher in every seed.
A decoder "is as good" if the 95 % interval of its difference in BLEU from a Transformer's decoder,
by Student's t over seeds, is above -1. If not, and the interval is below 0, it is not as good. In
all other cases nothing is decided.
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import Evidence, of_jobs, of_seeds
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN, judged, mean_text
from experiments.short_demo import SHORT_DEMO
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.collect import references
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import differences, of_row, text_of

ENCODERS = ("transformer", "recurrent", "convolutional")
DECODERS = ("transformer", "average", "ssru", "recurrent", "convolutional")
# d_hidden with which a model has as many parameters as the Transformer, by encoder and decoder.
HIDDEN: dict[str, dict[str, int]] = {
    "transformer": {"recurrent": 216, "convolutional": 180},
    "recurrent": dict(zip(DECODERS, (164, 96, 184, 172, 172), strict=True)),
    "convolutional": dict(zip(DECODERS, (156, 96, 172, 168, 176), strict=True)),
}
AS_GOOD = functools.partial(judged, limit=-1.0, wanted=1, refuted=0.0)  # differences in BLEU
TIMED = 500  # sentences
BEAMS = ("1", "4")  # beam sizes, as names in results.jsonl


def name_of(encoder: str, decoder: str) -> str:
    """A row's name."""
    return f"{encoder} to {decoder}"


def row_of(encoder: str, decoder: str) -> Overrides:
    """A row of the small scale."""
    row: dict[str, Any] = {"model.encoder": encoder, "model.decoder": decoder}
    if decoder in HIDDEN[encoder]:
        row["model.d_hidden"] = HIDDEN[encoder][decoder]
    return row | ({"train.remat": True} if "recurrent" in (encoder, decoder) else {})


BASE = name_of("transformer", "transformer")
ROWS: dict[str, Overrides] = {
    **{name_of(one, other): row_of(one, other) for one in ENCODERS for other in DECODERS},
    f"{BASE}, 2 + 1 layers": {"model.num_decoder_layers": 1},
    f"{BASE}, 3 + 1 layers": {"model.num_encoder_layers": 3, "model.num_decoder_layers": 1},
    f"{BASE}, 1 head of keys": {"model.num_key_heads": 1},
}
# What a Transformer's decoder is compared with, and the row.
JUDGED = {
    **{decoder: name_of("transformer", decoder) for decoder in DECODERS[1:]},
    "1 head of keys": f"{BASE}, 1 head of keys",
}


def speeds(job: Job) -> Evidence:
    """Sentences a second of processor time, for a run's greedy search and for its beam of 4."""
    from transformer_jax.use.loading import load_model

    sources = references(job)[0][:TIMED]
    found = {}
    for beam in BEAMS:
        loaded = load_model(str(job.folder), overrides={"decode.beam_size": int(beam)})
        lines = loaded.line_translator()
        lines(sources)
        start = time.process_time()
        lines(sources)
        found[beam] = len(sources) / (time.process_time() - start)
    return found


def slower(mine: Sequence[float], others: Sequence[float]) -> str:
    """The verdict on "slower", from speeds for each seed."""
    if not mine or not others:
        return NOT_RUN
    if max(mine) < min(others):
        return HOLDS
    return FAILS if min(mine) > max(others) else OPEN


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """BLEU, parameters, time and speeds of every pair of encoder and decoder, and the verdicts."""
    lines = read_results(folder)
    found = of_jobs(folder, jobs, speeds)
    rates = {
        row: {beam: [one[beam] for one in of_seeds(found, row).values()] for beam in BEAMS}
        for row in ROWS
    }
    rows = []
    for row in ROWS:
        cells = [text_of(of_row(lines, row, name), text) for name, text in COLUMNS.items()]
        rows.append([row, *cells, *(mean_text(rates[row][beam], ".0f") for beam in BEAMS)])
    verdicts = []
    for decoder, name in JUDGED.items():
        which = [slower(rates[BASE][beam], rates[name][beam]) for beam in BEAMS]
        gaps = differences(lines, name, BASE, "bleu")
        verdicts.append([decoder, *which, AS_GOOD(gaps), mean_text(gaps, "+.1f")])
    head = ["decoder", "Transformer is slower, greedy", "beam 4", "as good", "BLEU"]
    columns = ["encoder to decoder", "BLEU", "parameters, millions", "minutes"]
    return [
        Heading("Verdicts"),
        Table(head, verdicts),
        Heading("Every encoder with every decoder"),
        Table([*columns, "sentences/s, greedy", "sentences/s, beam 4"], rows),
    ]


COLUMNS = {"bleu": ".1f", "parameters": ".2f", "minutes": ".1f"}


EXPERIMENT = Experiment(
    name="caveats",
    rows=ROWS,
    scales={"small": SHORT_DEMO},
    about=__doc__,
    metrics=("perplexity", "bleu", "parameters", "minutes"),
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
