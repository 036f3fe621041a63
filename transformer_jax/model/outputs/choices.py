"""Outputs: from the decoder's output to logits and to the loss.

A new output is a class and its line in `OUTPUTS`.
"""

from collections.abc import Mapping

from transformer_jax.model.axes import Parameter
from transformer_jax.model.outputs import ctc, mask_predict
from transformer_jax.model.outputs.mixed_outputs import Copy, History, Marginal
from transformer_jax.model.outputs.softmax_output import Softmax

OUTPUTS: dict[str, type[Softmax]] = {
    "softmax": Softmax,
    "copy": Copy,
    "history": History,
    "marginal": Marginal,
}
# What a model that writes all subwords at once has beside its output, by model.parallel.
PARALLEL: Mapping[str | None, Mapping[str, Parameter]] = {
    None: {},
    "mask_predict": mask_predict.PARAMETERS,
    "ctc": ctc.PARAMETERS,
}
PARALLEL_AXES = {"lengths": mask_predict.LENGTHS, "states": ctc.STATES}
