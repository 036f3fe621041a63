"""The whole path in minutes: train on the built-in corpus, translate its test split, score, plot.

    python -m experiments.demo --workdir=runs/demo

The test split's word combinations never occur in training, so the score does not measure memory.
"""

import logging
import resource
import time
from pathlib import Path

from transformer_jax.config.files import load_config
from transformer_jax.reporting.plots import curves_figure, save_figure
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

log = logging.getLogger("experiments.demo")
CONFIG = Path(__file__).parent.parent / "configs" / "demo.py"
WORKDIR = Flag("workdir", str, "FOLDER", "the run's folder", default="runs/demo")
SENTENCE = "Finally the old teacher bought a big house because his daughter is working."


def main() -> None:
    """Trains or continues the run, then prints scores, examples and the paths of plots."""
    from transformer_jax.commands.attention import attention
    from transformer_jax.commands.evaluate import evaluate
    from transformer_jax.use.train import train

    values = parse_experiment("demo", __doc__, [WORKDIR])
    workdir = values["workdir"]
    start = time.monotonic()
    train(load_config(str(CONFIG), values["overrides"]), workdir)
    log.info("trained in %.0f s", time.monotonic() - start)
    evaluate(workdir, examples=6)
    print(f"\nsource      {SENTENCE}")
    attention(workdir, sentence=SENTENCE, output=f"{workdir}/attention.png")
    title = f"{workdir}: training on the built-in corpus"
    figure = curves_figure(read_metrics(workdir), title)
    print(f"curves      {save_figure(figure, f'{workdir}/curves.png')}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    log.info("%.0f s in all, at most %.1f GiB of memory", time.monotonic() - start, peak)


if __name__ == "__main__":
    run_main(main)
