"""Multi30k en-de in little time: the first attempt at a record (docs/records.md).

Paper: the preset configs/multi30k.py, with a deeper encoder and a shallower decoder (Kasai et al.
    2021), fewer updates at twice the learning rate, clipped, and less dropout, because training
    sees each pair eight times instead of fourteen.
Expected: the aim is sacreBLEU above 37.0 on the validation split in at most 60 % of the preset's
    time. It was not measured yet.
Device: 2 CPU cores, at most 30 minutes and 6 GiB.
Data: as for configs/multi30k.py.
Command: python -m experiments.speedrun --record=fast, or for one run
    python -m transformer_jax train --config=configs/multi30k_fast.py --workdir=runs/m30k_fast
"""

import os

from ml_collections import ConfigDict

from transformer_jax.config.serialization import default_config_dict

STEPS = 1_800


def get_config() -> ConfigDict:
    """The preset, a diff against the schema's defaults."""
    config = default_config_dict()

    config.data.path = os.path.join(os.environ.get("TRANSFORMER_JAX_DATA", "data"), "multi30k")
    config.data.test = ("test2016",)
    config.data.max_length = 64
    config.vocabulary.size = 4_000

    # A decoder layer costs a third more than an encoder layer, and search runs it for each subword.
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 2
    config.model.d_model = 256
    config.model.num_heads = 4
    config.model.d_ff = 1_024
    config.model.norm = "pre"
    config.model.dropout = 0.15

    config.train.steps = STEPS
    config.train.tokens_per_batch = 2_000
    config.train.row_length = 64
    config.train.loss_block = 512  # fits the cache of a CPU
    config.train.schedule = "linear"
    config.train.peak_learning_rate = 3e-3
    config.train.warmup_steps = 200
    config.train.decay_steps = STEPS
    config.train.clip_norm = 1.0
    config.train.log_every = 100
    # Once, at the end: a validation and a checkpoint take time.
    config.train.valid_every = STEPS
    config.train.checkpoint_every = STEPS
    config.train.keep_last = 1
    config.decode.tokens_per_batch = 2_048  # fits the cache of a CPU
    return config
