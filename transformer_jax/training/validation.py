"""Validation during training: loss without smoothing and dropout, and BLEU when asked."""

import math
from collections.abc import Callable

import jax

from transformer_jax.training.data import TrainingData
from transformer_jax.training.program import Program, make_eval_step
from transformer_jax.training.state import Params

Validate = Callable[[Params], tuple[dict[str, float], float]]


def make_validate(
    data: TrainingData, program: Program, bleu: Callable[[Params], float] | None
) -> Validate:
    """Parameters to (metrics, score); the score is BLEU where given, else minus the loss."""
    eval_step = make_eval_step(program)

    def validate(params: Params) -> tuple[dict[str, float], float]:
        parts = [eval_step(params, program.put(batch)) for batch in data.valid_batches()]
        sums = jax.tree.map(lambda *x: float(sum(x)), *jax.device_get(parts))
        nats = sums.nats / sums.tokens
        values = {
            "nats_per_token": nats,
            "perplexity": math.exp(min(nats, 700.0)),
            "token_accuracy": sums.correct / sums.tokens,
        }
        if bleu is None:
            return values, -nats
        values["bleu"] = bleu(params)
        return values, values["bleu"]

    return validate
