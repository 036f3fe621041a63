"""A scale that several experiments on the built-in corpus share: runs of a few minutes."""

from collections.abc import Mapping

from transformer_jax.tables.experiment import Overrides, Scale

SHORT_DEMO = Scale(
    "configs/demo.py",
    {
        "train.steps": 1_000,
        "train.decay_steps": 1_000,
        "train.valid_every": 250,
        "train.checkpoint_every": 500,
        "train.keep_last": 1,
    },
    seeds=(0, 1, 2),
    compared=False,
)
# What findings about the watched layer rely on: the built-in text, and that the layer is the first.
WATCHING = ("data", "model.watched_layer", "model.watched_heads")
WATCHING += ("model.num_layers", "model.num_decoder_layers")


def updates(count: int, every: int | None = None) -> Overrides:
    """Keys of a run of `count` updates, which validates and saves after `every`; None: `count`."""
    length = dict.fromkeys(("train.steps", "train.decay_steps"), count)
    return length | dict.fromkeys(("train.valid_every", "train.checkpoint_every"), every or count)


def at_rates(rates: Mapping[str, float]) -> dict[str, Overrides]:
    """Keys of rows, by their peak rates."""
    return {row: {"train.peak_learning_rate": rate} for row, rate in rates.items()}
