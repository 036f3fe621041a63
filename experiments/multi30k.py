"""Multi30k en-de from nothing to a table of scores: train, average, evaluate on test2016.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.multi30k --workdir=runs/m30k

FOLDER has multi30k/. Overrides work as with `train`. On a GPU use four times the steps:
    --config.train.steps=12000 --config.train.decay_steps=12000 --config.model.dtype=bfloat16

How to read it: compare greedy with beam 4 for the gain of beam search, and the average with the
last checkpoint for the gain of averaging, which is small once the learning rate is 0. Published
figures are for tokenized, often lowercased text, up to 41 for a tuned tiny model (Wu et al. 2021);
sacreBLEU here is cased and detokenized.
"""

import logging
import sys
import time
from pathlib import Path

from transformer_jax.commands.command_line import Flag, exit_status, parse_experiment, set_up_logs
from transformer_jax.config.files import load_config

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
    from transformer_jax.commands.train import train

    values = parse_experiment("multi30k", __doc__, FLAGS)
    workdir = values["workdir"]
    start = time.monotonic()
    train(load_config(str(CONFIG), values["overrides"]), workdir)
    minutes = (time.monotonic() - start) / 60
    average(workdir, values["last"])
    rows = []
    for checkpoint in ("latest", "average"):
        for beam_size in (1, 4):
            start = time.monotonic()
            scores = evaluate(workdir, checkpoint=checkpoint, beam_size=beam_size).scores
            seconds = time.monotonic() - start
            rows.append(
                f"| {checkpoint} | {beam_size} | {scores.bleu:.2f} | {scores.paper_bleu:.2f} | "
                f"{scores.chrf:.2f} | {seconds:.0f} |"
            )
    print(f"\ntrained for {minutes:.1f} minutes (this call)\n")
    print("| checkpoint | beam | BLEU | paper BLEU | chrF2 | seconds |\n|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\n{scores.bleu_signature}")


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
