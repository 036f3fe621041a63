"""Real text in English and German, or English and French: manuals, documentation, law, news.

Paper: Vaswani et al. 2017, sections 5 and 6.1, with other text: 549,000 pairs of English and German
    (70 % technical documentation, 7 % news) or 298,000 of English and French (law, manuals). So the
    BLEU of newstest2014 is far below that of models trained on WMT14: name the text in any report.
Arguments, in any order: base or big; en-de, de-en, en-fr or fr-en; paper (its recipe) or modern
    (its successors' parts and optimizer). The default is base,en-de,paper.
Expected: not run.
Device: a GPU. Too large for a CPU.
Data: the folder that holds mixed-en-de/, newstest-en-de/ and mixed-en-fr/ is TRANSFORMER_JAX_DATA
    in the environment, or data/.
Command: python -m transformer_jax train --config=configs/mixed.py:en-de --workdir=runs/mixed \
    --config.model.dtype=bfloat16 --config.model.residual_dtype=bfloat16
"""

import os

from ml_collections import ConfigDict

from transformer_jax.config.presets import RECIPES, SIZES, set_recipe, words
from transformer_jax.config.serialization import default_config_dict

DIRECTIONS = ("en-de", "de-en", "en-fr", "fr-en")
SETS = {  # of the validation and of the test split, for each pair of languages
    "de": (("newscomm-valid",), ("newscomm-test", "tech-test", "../newstest-en-de/newstest2014")),
    "fr": (("newstest2013",), ("legal-test", "newstest2014")),
}


def get_config(argument: str = "base,en-de,paper") -> ConfigDict:
    """The preset, a diff against the schema's defaults, which are the paper's base model."""
    size, direction, recipe = words("configs/mixed.py", argument, SIZES, DIRECTIONS, RECIPES)
    config = default_config_dict()

    config.data.src, config.data.tgt = direction.split("-")
    other = config.data.src if config.data.tgt == "en" else config.data.tgt
    data = os.environ.get("TRANSFORMER_JAX_DATA", "data")
    config.data.path = os.path.join(data, f"mixed-en-{other}")
    config.data.valid, config.data.test = SETS[other]

    config.train.steps = 17_000
    config.train.checkpoint_every = config.train.valid_every = 500
    set_recipe(config, size, recipe)
    return config
