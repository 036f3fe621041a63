"""Multi30k en-de from nothing to a table of scores: train, average, evaluate on the test sets.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.multi30k --workdir=runs/m30k

FOLDER has multi30k/. Overrides work as with `train`. On a GPU use four times the steps:
    --config.train.steps=12000 --config.train.decay_steps=12000 --config.model.dtype=bfloat16

Without an override the test set is test2016. If FOLDER/multi30k has others too, name them all, by
the stems of their files; each set has a line:
    --config.data.test=test2016,test_2017_flickr,test_2018_flickr,test_2017_mscoco

How to read it: compare greedy with beam 4 for the gain of beam search, and the average with the
last checkpoint for the gain of averaging, which is small once the learning rate is 0. Published
figures are for tokenized, often lowercased text, up to 41 for a tuned tiny model (Wu et al. 2021):
compare them with the column lowercased BLEU. BLEU is sacreBLEU's, cased and detokenized.
"""

import logging
import time
from pathlib import Path

from transformer_jax.config.files import load_config
from transformer_jax.reporting.page import markdown_table
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

log = logging.getLogger("experiments.multi30k")
CONFIG = Path(__file__).parent.parent / "configs" / "multi30k.py"
FLAGS = [
    Flag("workdir", str, "FOLDER", "the run's folder", default="runs/m30k"),
    Flag("last", int, "K", "checkpoints to average", default=5),
]


def main() -> None:
    """Trains or continues the run, then prints one Markdown table of test scores."""
    from transformer_jax.commands.average import average
    from transformer_jax.commands.evaluate import evaluate
    from transformer_jax.use.train import train

    values = parse_experiment("multi30k", __doc__, FLAGS)
    workdir = values["workdir"]
    start = time.monotonic()
    train(load_config(str(CONFIG), values["overrides"]), workdir)
    minutes = (time.monotonic() - start) / 60
    averaged = average(workdir, values["last"]).name
    rows = []
    for checkpoint, name in {"latest": "latest", "average": averaged}.items():
        for beam_size in (1, 4):
            start = time.monotonic()
            found = evaluate(workdir, checkpoint=name, beam_size=beam_size)
            seconds = time.monotonic() - start
            for test, one in (found.parts or {"test": found}).items():
                scores = one.scores
                numbers = (scores.bleu, scores.paper_bleu, scores.lowercased_bleu, scores.chrf)
                cells = ["" if number is None else f"{number:.2f}" for number in numbers]
                rows.append([test, checkpoint, str(beam_size), *cells, f"{seconds:.0f}"])
    print(f"\ntrained for {minutes:.1f} minutes (this call)\n")
    head = ["test set", "checkpoint", "beam", "BLEU", "paper BLEU", "lowercased BLEU", "chrF2"]
    print(markdown_table([*head, "seconds of all sets"], rows))
    print("\n".join((scores.bleu_signature, scores.lowercased_bleu_signature or "")))


if __name__ == "__main__":
    run_main(main)
