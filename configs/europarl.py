"""Europarl, English and Italian: parliament debates of 1996 to 2001, 621,000 pairs of 26 words.

Paper: Vaswani et al. 2017, sections 5 and 6.1, with another text: "Europarl", never "WMT14".
Arguments, in any order: base or big; en-it or it-en; paper (its recipe) or modern (its successors'
    parts and optimizer). The default is base,en-it,paper.
Expected: base,en-it,paper, 17,000 updates, beam 4, the mean of the last 5 checkpoints: sacreBLEU
    27.4 and chrF2 57.7 on `test`, 30.0 and 58.2 on `documents-test`. The others were not run.
Device: an H200, 9.2 minutes, 11 GiB (2026-11-27). Too large for a CPU.
Data: the folder that holds europarl-en-it/ is TRANSFORMER_JAX_DATA in the environment, or data/.
Command: python -m transformer_jax train --config=configs/europarl.py --workdir=runs/europarl \
    --config.model.dtype=bfloat16 --config.model.residual_dtype=bfloat16
"""

import os

from ml_collections import ConfigDict

from transformer_jax.config.presets import RECIPES, SIZES, set_recipe, words
from transformer_jax.config.serialization import default_config_dict

DIRECTIONS = ("en-it", "it-en")


def get_config(argument: str = "base,en-it,paper") -> ConfigDict:
    """The preset, a diff against the schema's defaults, which are the paper's base model."""
    size, direction, recipe = words("configs/europarl.py", argument, SIZES, DIRECTIONS, RECIPES)
    config = default_config_dict()

    data = os.environ.get("TRANSFORMER_JAX_DATA", "data")
    config.data.path = os.path.join(data, "europarl-en-it")
    config.data.src, config.data.tgt = direction.split("-")
    config.data.test = ("test", "documents-test")

    config.train.steps = 17_000
    config.train.checkpoint_every = config.train.valid_every = 500
    set_recipe(config, size, recipe)
    return config
