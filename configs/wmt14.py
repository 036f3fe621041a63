"""WMT 2014 en-de and en-fr: the paper's recipe, whole.

Paper: Vaswani et al. 2017, sections 5 and 6.1, tables 2 and 3.
Arguments, in any order: base or big, en-de or en-fr. The default is base,en-de.
Commands:
    python -m transformer_jax prepare --config=configs/wmt14.py:big,en-fr
    python -m transformer_jax train --config=configs/wmt14.py:big,en-fr --workdir=runs/big_fr
    python -m transformer_jax average --workdir=runs/big_fr --last=20
    python -m transformer_jax evaluate --workdir=runs/big_fr --checkpoint=average

Expected, from table 2:

| argument | paper BLEU, newstest2014 | steps | last checkpoints averaged |
|---|---|---|---|
| base,en-de | 27.3 | 100,000 | 5 |
| base,en-fr | 38.1 | 100,000 | 5 |
| big,en-de | 28.4 | 300,000 | 20 |
| big,en-fr | 41.8 | 300,000 | 20 |

Device: the paper used 8 P100 GPUs, 12 hours (base) and 3.5 days (big). On GPUs and TPUs of today
    add --config.model.dtype=bfloat16, and train.accumulate_steps where a batch does not fit.
Data: TFDS, wmt14_translate/de-en or fr-en (the paper: 4.5 and 36 million pairs); its "validation"
    is newstest2013, its "test" newstest2014. data.path names TFDS's folder.
Rows of table 3 are not averaged: leave `average` out.
"""

from ml_collections import ConfigDict

from transformer_jax.config.presets import SIZES, set_recipe, words
from transformer_jax.config.serialization import default_config_dict

DIRECTIONS = ("en-de", "en-fr")


def get_config(argument: str = "base,en-de") -> ConfigDict:
    """The preset, a diff against the schema's defaults, which are the paper's base model."""
    size, direction = words("configs/wmt14.py", argument, SIZES, DIRECTIONS)
    config = default_config_dict()

    config.data.source = "tfds"
    config.data.src, config.data.tgt = direction.split("-")
    config.data.name = f"wmt14_translate/{config.data.tgt}-en"
    config.data.valid = ("validation",)
    config.vocabulary.size = 37_000 if direction == "en-de" else 32_000

    # A checkpoint every 10 minutes of the paper's hardware: 0.4 s a step of base, 1.0 s of big.
    config.train.checkpoint_every = config.train.valid_every = 1_400
    set_recipe(config, size, "paper")
    if size == "big":
        config.model.dropout = 0.3 if direction == "en-de" else 0.1
        config.train.steps = 300_000
        config.train.checkpoint_every = config.train.valid_every = 600
    return config
