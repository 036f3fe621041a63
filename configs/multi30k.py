"""Multi30k en-de (Elliott et al. 2016, task 1): image captions, 29,000 pairs of about 12 words.

Paper: the model of Vaswani et al. 2017 at a tenth of its size, pre-norm, more dropout.
Expected: sacreBLEU >= 37 on test2016 with beam 4.
Device: 2 CPU cores, at most 60 minutes and 6 GiB. An H200: see docs/gpu_runs.md.
Data: the folder that holds multi30k/ is TRANSFORMER_JAX_DATA in the environment, or data/.
Command: python -m transformer_jax train --config=configs/multi30k.py --workdir=runs/m30k
"""

import os

from ml_collections import ConfigDict

from transformer_jax.config.serialization import default_config_dict


def get_config() -> ConfigDict:
    """The preset, a diff against the schema's defaults."""
    config = default_config_dict()

    config.data.path = os.path.join(os.environ.get("TRANSFORMER_JAX_DATA", "data"), "multi30k")
    config.data.test = ("test2016",)
    config.data.max_length = 64
    config.vocabulary.size = 6_000

    config.model.num_layers = 3
    config.model.d_model = 256
    config.model.num_heads = 4
    config.model.d_ff = 1_024
    config.model.norm = "pre"
    config.model.dropout = 0.2

    config.train.steps = 3_000
    config.train.tokens_per_batch = 2_000
    config.train.row_length = 64
    config.train.loss_block = 512  # fits the cache of a CPU
    config.train.schedule = "linear"
    config.train.peak_learning_rate = 1.5e-3
    config.train.warmup_steps = 300
    config.train.decay_steps = 3_000
    config.train.log_every = 50
    config.train.valid_every = 250
    config.train.checkpoint_every = 250
    config.train.keep_last = 5
    config.decode.tokens_per_batch = 2_048  # fits the cache of a CPU
    return config
