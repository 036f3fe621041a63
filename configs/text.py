"""Text files of your own: one sentence a line, line n of the one translating line n of the other.

Paper: the model of Vaswani et al. 2017 between its base size and a tenth of it, pre-norm, for some
    10,000 to 1,000,000 pairs. With fewer, lower vocabulary.size and train.steps, and raise
    model.dropout.
Expected: no recorded result. If the validation loss rises again, use more dropout or fewer steps.
Data: FOLDER holds train.SRC and train.TGT, valid.* and test.*, plain or .gz; SRC and TGT are any
    two suffixes. Without valid.*, 5 % of the training pairs, at most 2,000, are cut off for it.
    --config.data.train=A,B joins A.* and B.*.
Device: a GPU: add --config.model.dtype=bfloat16, which fused attention needs, and
    --config.model.residual_dtype=bfloat16. On two CPU cores, a step takes seconds; there add
    --config.train.loss_block=512 --config.decode.tokens_per_batch=2048, which fit its cache.
Command: python -m transformer_jax train --config=configs/text.py --workdir=runs/mine \
    --config.data.path=FOLDER --config.data.src=SRC --config.data.tgt=TGT
"""

from ml_collections import ConfigDict

from transformer_jax.config.serialization import default_config_dict


def get_config() -> ConfigDict:
    """The preset, a diff against the schema's defaults."""
    config = default_config_dict()

    config.vocabulary.size = 8_000

    config.model.num_layers = 4
    config.model.d_model = 256
    config.model.num_heads = 4
    config.model.d_ff = 1_024
    config.model.norm = "pre"
    config.model.dropout = 0.2

    config.train.steps = 10_000
    config.train.tokens_per_batch = 4_000
    config.train.row_length = 128
    config.train.peak_learning_rate = 1e-3
    config.train.warmup_steps = 1_000
    config.train.valid_every = 500
    config.train.checkpoint_every = 500
    config.train.keep_last = 5
    return config
