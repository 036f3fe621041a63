"""The `prepare` command: downloads a config's data set."""

import logging

from transformer_jax.config.schema import Config
from transformer_jax.text import tfds_corpus

log = logging.getLogger(__name__)


def prepare(config: Config) -> None:
    """Downloads the config's TFDS data set and converts it; does nothing if that was done before.

    Raises:
      UserError: the corpus does not come from TFDS, or TFDS cannot prepare it.
    """
    log.info("%s is prepared in %s", config.data.name, tfds_corpus.prepare(config.data))
