"""Outputs: from the decoder's output to logits and to the loss.

A new output is a class and its line in `OUTPUTS`.
"""

from transformer_jax.model.outputs.history_output import History
from transformer_jax.model.outputs.marginal_output import Marginal
from transformer_jax.model.outputs.mixed_outputs import Copy
from transformer_jax.model.outputs.softmax_output import Softmax

OUTPUTS: dict[str, type[Softmax]] = {
    "softmax": Softmax,
    "copy": Copy,
    "history": History,
    "marginal": Marginal,
}
