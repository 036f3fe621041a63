"""Without positions, word order is lost: the model sees a bag of words (section 3.5).

A model that was trained without positions translates sources of the built-in corpus whose subwords
are shuffled.
"""

import numpy as np

from experiments.claims.judging import GRAMMAR, REFERENCE, Claim, Finding, Known, Probe
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS
from transformer_jax.reporting.page import Table
from transformer_jax.tables.collect import hypotheses, references
from transformer_jax.tables.experiment import Job

CLAIM = Claim("Without positions, word order is lost", "section 3.5")
NO_POSITIONS = "no positions"
ROWS = {NO_POSITIONS: {**GRAMMAR, "model.positions": "none"}}
SHUFFLED = 200  # sentences


def word_order(*jobs: Job) -> Evidence:
    """How a model translates sources with shuffled subwords, and which errors it makes.

    It returns shares by row. "same": shuffled sources with the same translation as the original
    source. "exact": translations of the test split that equal the reference. "order": translations
    that have the words of the reference, each equally often, in another order.
    """
    return {job.row: _word_order(job) for job in jobs}


def _word_order(job: Job) -> Evidence:
    from transformer_jax.use.loading import load_model

    sources, wanted = references(job)
    loaded = load_model(str(job.folder))
    ids = loaded.line_translator().encode(sources[:SHUFFLED])
    draw = np.random.default_rng(0)
    shuffled = [np.append(draw.permutation(one[:-1]), one[-1]) for one in ids]
    both = loaded.translator.translate([*ids, *shuffled])
    outputs = [tuple(found[0].ids) if found else () for found in both]
    pairs = list(zip(hypotheses(job) or [], wanted, strict=True))
    bags = [(sorted(one.lower().split()), sorted(other.lower().split())) for one, other in pairs]
    exact = [one == other for one, other in pairs]
    return {
        "same": float(np.mean([outputs[n] == outputs[n + len(ids)] for n in range(len(ids))])),
        "exact": float(np.mean(exact)),
        "order": float(np.mean([a == b and not e for (a, b), e in zip(bags, exact, strict=True)])),
    }


PROBE = Probe("word order", word_order, (REFERENCE, NO_POSITIONS))


def findings(known: Known) -> list[Finding]:
    """Compares the model without positions with the reference."""
    found = known.evidence.get(PROBE.name)
    if not found:
        return [CLAIM.is_not_run()]
    with_them, without = found[REFERENCE], found[NO_POSITIONS]
    head = ["model", "same translation of a shuffled source", "exact", "right words, wrong order"]
    rows = [
        [row, *(f"{found[row][key]:.1%}" for key in ("same", "exact", "order"))] for row in found
    ]
    because = (
        f"shuffled sources are translated as before in {without['same']:.0%} of cases (with "
        f"positions {with_them['same']:.0%}); {without['exact']:.0%} of translations are exact "
        f"({with_them['exact']:.0%})"
    )
    lost = without["same"] > 0.95 and without["exact"] < with_them["exact"] - 0.05
    return [CLAIM.is_found(HOLDS if lost else FAILS, because, Table(head, rows))]
