"""Encoder-decoder attention learns word alignment (section 3.2.3, figures 3 to 5).

The built-in corpus knows its alignments, so the reference's heads have error rates.
"""

import numpy as np

from experiments.claims.judging import REFERENCE, Claim, Finding, Known, Probe
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS
from transformer_jax.reporting.page import Table
from transformer_jax.tables.experiment import Job

CLAIM = Claim("Encoder-decoder attention learns word alignment", "section 3.2.3, figures 3 to 5")
ALIGNED = 500  # sentence pairs


def alignment(job: Job) -> Evidence:
    """Alignment error rates of encoder-decoder attention in forced decoding of the reference."""
    from transformer_jax.evaluation.alignment import alignment_error_rates
    from transformer_jax.text.built_in_corpus import built_in_pairs
    from transformer_jax.use.loading import load_model

    pairs = built_in_pairs("test", ALIGNED)
    loaded = load_model(str(job.folder))
    model, params = loaded.translator.model, loaded.translator.params
    errors = alignment_error_rates(model, params, loaded.vocabulary, pairs)
    words = sum(len(pair.tgt_words) for pair in pairs)
    linked = sum(len({target for _, target in pair.alignment}) for pair in pairs)
    return {
        "heads": np.asarray(errors.heads_NH).tolist(),
        "mean": np.asarray(errors.mean_N).tolist(),
        "diagonal": errors.diagonal,
        # The least possible with one link per target word: some words have none, some several.
        "least": 1 - 2 * linked / (words + errors.links),
        "pairs": errors.pairs,
    }


PROBE = Probe("alignment", alignment, (REFERENCE,))


def findings(known: Known) -> list[Finding]:
    """It is learned if the best head or layer has less than half of the diagonal's error rate."""
    found = known.evidence.get(PROBE.name)
    if not found:
        return [CLAIM.is_not_run("its run is missing")]
    best = min(map(min, found["heads"]))
    lowest = min(found["mean"])
    because = (
        f"error rate {best:.2f} of the best head and {lowest:.2f} of the best layer's mean, "
        f"{found['diagonal']:.2f} of a diagonal, {found['least']:.2f} the least possible; it "
        "counts as learned below half of the diagonal's"
    )
    which = HOLDS if min(best, lowest) < found["diagonal"] / 2 else FAILS
    return [CLAIM.is_found(which, because, _table(found))]


def _table(found: Evidence) -> Table:
    heads = range(1, len(found["heads"][0]) + 1)
    rows = [
        [str(n), *(f"{error:.3f}" for error in (*layer, mean))]
        for n, (layer, mean) in enumerate(zip(found["heads"], found["mean"], strict=True), 1)
    ]
    about = (
        f"Alignment error rate over {found['pairs']} pairs of the test split; the diagonal has "
        f"{found['diagonal']:.3f}, and one link a target word cannot have less than "
        f"{found['least']:.3f}"
    )
    return Table(["layer", *(f"head {n}" for n in heads), "mean of the heads"], rows, about)
