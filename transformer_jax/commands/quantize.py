"""The `quantize` command: a run whose weights take a quarter of the space, as int8 with scales."""

import logging

import jax
import numpy as np

from transformer_jax.commands.import_model import write_run
from transformer_jax.errors import RunError
from transformer_jax.model.parameters import in_int8
from transformer_jax.runs.run_folder import IMPORTED, QUANTIZED, RunFolder
from transformer_jax.use.loading import load_model

log = logging.getLogger(__name__)


def quantize(workdir: str, output: str, *, checkpoint: str = "latest") -> None:
    """Writes a run with int8 matrices; it is read as float32, and translates as any other.

    Search is as fast as before: on CPUs, XLA's products of int8 are no faster (docs/speed.md).
    Another run can start from it (train.init_from).

    Args:
      output: the new run's folder, which must be empty or not exist.
      workdir, checkpoint: see `load_model`.

    Raises:
      UserError: there is no such run or checkpoint, the folder is taken, or a weight is not finite.
    """
    run = RunFolder(output, "--output")
    run.check_new()
    loaded = load_model(workdir, checkpoint, overrides={"decode.weights": None})
    run.check(loaded.config)
    params = jax.device_get(loaded.translator.params)
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(params)):
        raise RunError(f"{workdir} has weights that are no numbers: its training diverged.")
    small, scales = in_int8(loaded.model, params)
    own = RunFolder(workdir)
    how = IMPORTED if own.is_imported else QUANTIZED
    texts = own.fingerprints()[:2]
    write_run(run, own.read_config(), loaded.vocabulary, small, how, scales, texts)
    before, after = (
        sum(x.nbytes for x in jax.tree.leaves(one)) for one in (params, (small, scales))
    )
    log.info("%s: weights of %s bytes instead of %s", run.path, f"{after:,}", f"{before:,}")
