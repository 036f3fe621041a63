"""Validation during training: the loss without smoothing and dropout, and BLEU if configured.

After train.patience validations in a row without a better score, training ends. The count comes
from the scores of all validations, which metrics.jsonl keeps. A continued run therefore decides as
one that never stopped, and old runs can begin to use the key.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from transformer_jax.model.interfaces import Params
from transformer_jax.parallel.mesh import own_rows, put_rows
from transformer_jax.runs.metrics import FILE, read_metrics
from transformer_jax.training.data import TrainingData
from transformer_jax.training.program import Program
from transformer_jax.training.window import perplexity

Validate = Callable[[Params], tuple[dict[str, float], float] | None]
# A step and its validation score: BLEU, or minus the loss without train.valid_bleu.
Scored = tuple[int, float]


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


def past_scores(workdir: Path, step: int) -> list[Scored]:
    """The validations of a run up to this step, oldest first; empty for a new run."""
    if not (workdir / FILE).exists():
        return []
    records = [one for one in read_metrics(workdir) if one["kind"] == "valid"]
    return [
        (one["step"], one.get("bleu", -one.get("nats_per_token", math.inf)))
        for one in records
        if one["step"] <= step
    ]


class Patience:
    """Counts validations in a row whose score is not above the best before them."""

    def __init__(self, limit: int | None, past: Sequence[Scored] = ()) -> None:
        """Takes train.patience (None: training never ends early) and the validations so far."""
        self.limit = limit
        self.waited = 0
        self.best: Scored = (0, -math.inf)
        for step, score in past:
            self.note(step, score)

    def note(self, step: int, score: float) -> None:
        """Counts a validation. A score that is equal, or not a number, is not better."""
        if score > self.best[1]:
            self.best = (step, score)
            self.waited = 0
        else:
            self.waited += 1

    @property
    def is_over(self) -> bool:
        """Whether training ends here."""
        return self.limit is not None and self.waited >= self.limit

    def __str__(self) -> str:
        return (
            f"train.patience={self.limit}: the last {self.waited} validations were not better than "
            f"that of step {self.best[0]}"
        )
