"""Early stopping: training ends after train.patience validations in a row without a better score.

The count comes from the scores of all validations, which metrics.jsonl keeps. A continued run
therefore decides as one that never stopped, and old runs can begin to use the key.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.runs.metrics import FILE, read_metrics

# A step and its validation score: BLEU, or minus the loss without train.valid_bleu.
Scored = tuple[int, float]


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
