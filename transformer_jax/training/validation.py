"""Validation during training: the loss without smoothing and dropout, and BLEU if configured."""

from collections.abc import Callable

import jax

from transformer_jax.model.interfaces import Params
from transformer_jax.parallel.mesh import own_rows, put_rows
from transformer_jax.training.data import TrainingData
from transformer_jax.training.program import Program
from transformer_jax.training.window import perplexity

Validate = Callable[[Params], tuple[dict[str, float], float] | None]


def make_validate(
    data: TrainingData, program: Program, bleu: Callable[[Params], float | None] | None
) -> Validate:
    """Returns a function from parameters to (metrics, score).

    The score is that of `bleu`, or minus the loss if `bleu` is None. If a signal stops `bleu`, it
    returns None, and so does the function.
    """
    rows = data.valid_shape.rows
    own = own_rows(program.mesh, rows)

    def validate(params: Params) -> tuple[dict[str, float], float] | None:
        parts = [
            program.evaluate(params, put_rows(program.mesh, rows, own, batch))
            for batch in data.valid_batches(own)
        ]
        sums = jax.tree.map(lambda *x: float(sum(x)), *jax.device_get(parts))
        nats = sums.nats / sums.tokens
        values = {
            "nats_per_token": nats,
            "perplexity": perplexity(nats),
            "token_accuracy": sums.correct / sums.tokens,
        }
        if bleu is None:
            return values, -nats
        score = bleu(params)
        return None if score is None else (values | {"bleu": score}, score)

    return validate
