"""Starts from the weights of another run, such as an imported OPUS-MT model, on your own text.

Paper: Freitag and Al-Onaizan 2016: a few epochs on the new domain with a small learning rate.
Expected: a gain on text like yours after some thousand updates; watch the validation loss.
Device: one GPU for a model of OPUS-MT's size; small ones train on a CPU.
Command: python -m transformer_jax import --from=FOLDER --src=en --tgt=de --workdir=runs/opus
    python -m transformer_jax train --config=configs/finetune.py:runs/opus --workdir=runs/mine \
        --config.data.path=FOLDER_OF_TEXT

The argument is the other run's folder. The new run has its model and its vocabulary.
"""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config.serialization import default_config_dict
from transformer_jax.errors import ConfigError
from transformer_jax.runs.run_folder import RunFolder

# What a source and a target of the other run are.
READ = ("src", "tgt", "directions", "context", "src_kind", "sample_rate", "mel_bands")
READ += ("stacked_frames", "patch_height", "patch_width")


def get_config(run: str) -> ConfigDict:
    """The preset, a diff against the schema's defaults and the other run's model."""
    if not run:
        raise ConfigError("--config=finetune: names no run. Give its folder: finetune:RUN.")
    config = default_config_dict()
    other = RunFolder(run).read_config()
    config.model.update(dataclasses.asdict(other.model))
    config.decode.update(dataclasses.asdict(other.decode))
    config.data.update({name: getattr(other.data, name) for name in READ})
    config.train.init_from = run

    config.train.steps = 5_000
    config.train.tokens_per_batch = 5_000
    config.train.schedule = "linear"
    config.train.peak_learning_rate = 1e-4  # a tenth of that of configs/text.py
    config.train.warmup_steps = 250
    config.train.decay_steps = 5_000
    config.train.clip_norm = 1.0
    config.train.valid_every = 250
    config.train.checkpoint_every = 250
    config.train.keep_last = 3
    return config
