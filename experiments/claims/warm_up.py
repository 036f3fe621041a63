"""The paper trains with warm-up (section 5.3): do post-norm and pre-norm models need it?

Deep models on the built-in corpus, post-norm and pre-norm, are trained with and without 200 steps
of warm-up. The paper's model is post-norm.
"""

from typing import Any

import numpy as np

from experiments.claims.judging import GRAMMAR, REFERENCE, Claim, Finding, Known, Probe
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS, OPEN, mean_of
from transformer_jax.tables.experiment import Job

CLAIMS = {
    "post": Claim("Without warm-up, training of a post-norm model fails", "section 5.3"),
    "pre": Claim("Without warm-up, training of a pre-norm model goes well", "only a control"),
}
DEEP: dict[str, Any] = {  # so that missing warm-up can do harm: 6 layers, a rate that stays high
    **GRAMMAR,
    "train.steps": 400,
    "train.decay_steps": None,
    "train.valid_every": 100,
    "model.num_layers": 6,
    "train.schedule": "constant",
    "train.peak_learning_rate": 1e-3,
}
WARM_UP = {"warm-up": 200, "no warm-up": 0}  # steps
ROWS = {
    f"{norm}-norm, {how}": {**DEEP, "model.norm": norm, "train.warmup_steps": steps}
    for norm in CLAIMS
    for how, steps in WARM_UP.items()
}
LEARNED = 0.5  # share of the perplexity by subword frequencies; above it a model learned nothing
COUNTED, VALIDATED = 20_000, 500  # sentence pairs


def frequencies(job: Job) -> Evidence:
    """Perplexity of the validation split for a model that knows only the subwords' frequencies."""
    from transformer_jax.text.built_in_corpus import built_in_pairs
    from transformer_jax.use.loading import load_model

    vocabulary = load_model(str(job.folder)).vocabulary
    counts_of = {}
    for split, pairs in (("train", COUNTED), ("valid", VALIDATED)):
        sentences = vocabulary.encode_lines([pair.tgt for pair in built_in_pairs(split, pairs)])
        counts = np.bincount(np.concatenate(sentences), minlength=vocabulary.size)
        counts_of[split] = np.append(counts, len(sentences))  # EOS
    p = (counts_of["train"] + 1) / (counts_of["train"] + 1).sum()
    seen = counts_of["valid"] / counts_of["valid"].sum()
    return {"perplexity": float(np.exp(-(seen * np.log(p)).sum()))}


PROBE = Probe("frequencies", frequencies, (REFERENCE,))


def findings(known: Known) -> list[Finding]:
    """Compares the perplexity without warm-up with that of a model that has learned nothing."""
    return [_finding(norm, claim, known) for norm, claim in CLAIMS.items()]


def _finding(norm: str, claim: Claim, known: Known) -> Finding:
    with_it, without = (
        mean_of(known.lines, f"{norm}-norm, {how}", "perplexity") for how in WARM_UP
    )
    nothing = known.evidence.get(PROBE.name)
    if with_it is None or without is None or not nothing:
        return claim.is_not_run()
    limit = LEARNED * nothing["perplexity"]
    as_claimed = (without > limit) == (norm == "post")
    # If training fails with warm-up too, the runs show nothing about warm-up.
    which = OPEN if with_it > limit else HOLDS if as_claimed else FAILS
    because = (
        f"perplexity {without:.1f} without, {with_it:.1f} with 200 steps of warm-up (6 layers, a "
        f"constant rate of 1e-3, one seed); a model of subwords' frequencies "
        f"alone has {nothing['perplexity']:.0f}, and training fails above half of that"
    )
    return claim.is_found(which, because)
