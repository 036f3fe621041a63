"""Europarl, English and Italian: parliament debates of 1996 to 2001, 621,000 pairs of 26 words.

Paper: Vaswani et al. 2017, sections 5 and 6.1, with another text: "Europarl", never "WMT14".
Arguments, in any order: base or big; en-it or it-en; paper (its recipe) or modern (its successors'
    parts and optimizer). The default is base,en-it,paper.
Expected: sacreBLEU of the test split with beam 4, the mean of the last 5 checkpoints:
    base,en-it,paper: 27.4 on `test`, 30.0 on `documents-test`, after 17,000 updates.
Device: one H200, 9.2 minutes, 11 GiB (2026-11-27); on two CPU cores a step takes 20 seconds.
Data: the folder that holds europarl-en-it/ is TRANSFORMER_JAX_DATA in the environment, or data/.
Command: python -m transformer_jax train --config=configs/europarl.py --workdir=runs/europarl \
    --config.model.dtype=bfloat16 --config.model.residual_dtype=bfloat16
"""

import os

from ml_collections import ConfigDict

from transformer_jax.config.presets import BIG, MODERN, apply, words
from transformer_jax.config.serialization import default_config_dict

SIZES = ("base", "big")
DIRECTIONS = ("en-it", "it-en")
RECIPES = ("paper", "modern")
STEPS = 17_000
D_FF = {"base": 1_365, "big": 2_731}  # of SwiGLU: a third less


def get_config(argument: str = "base,en-it,paper") -> ConfigDict:
    """The preset, a diff against the schema's defaults, which are the paper's base model."""
    size, direction, recipe = words("configs/europarl.py", argument, SIZES, DIRECTIONS, RECIPES)
    config = default_config_dict()

    config.data.path = os.path.join(
        os.environ.get("TRANSFORMER_JAX_DATA", "data"), "europarl-en-it"
    )
    config.data.src, config.data.tgt = direction.split("-")
    config.data.test = ("test", "documents-test")

    config.train.steps = STEPS
    config.train.checkpoint_every = config.train.valid_every = 500
    if size == "big":
        apply(config, BIG)
    if recipe == "modern":
        apply(config, MODERN)
        config.model.d_ff = D_FF[size]
        config.train.decay_steps = STEPS
    return config
