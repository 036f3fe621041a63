"""Which heads of attention can go: by their importance, at random, or the most important first.

    python -m experiments.pruning --scale=small

The question: how many heads does a trained model need, and does the gradient of its loss tell which
(Michel et al. 2019)? And which heads stay: those that align words, those that look at a neighbour?

The row is a model of 2 + 2 layers with 8 heads of 16 in each of its 6 attentions, trained on the
short demo's corpus. Then a quarter, a half and three quarters of the heads of each attention are
closed, without further training: the least important by the mean |dL/dg| of 200 validation pairs
(`transformer-jax prune`, which takes 500, where training goes on), as many at random (the mean of
two draws), or the most important, which is the control that must fail. Greedy BLEU on 500 test
pairs. A head's error is its alignment error rate against the gold links; its neighbour share is the
largest mean weight at one distance, of at most 2.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Importance tells" holds for a share if BLEU is higher than with random heads, and does not if it is
lower. "They can go" holds if BLEU falls by less than 1, and does not if by more. The control must
lose more than random heads. "Aligning heads stay" holds if, of half the heads, those of
encoder-decoder attention that stay have a lower mean error than those that go, and does not if a
higher one; "neighbours stay" is the same of self-attention's neighbour share, if higher.

Then training goes on for 500 updates, from the weights of the whole model and of runs that
`transformer-jax prune` wrote, without a quarter and without half of the heads, by importance and at
random (one draw). The same rules, written before these runs, hold for "tells" and "can go" against
the whole model, which has as many further updates.

Learned gates are another way to choose (Voita et al. 2019): hard concrete gates (Louizos et al.
2018) on all heads at once, whose expected share of open gates is added to the nats of a subword.
They take 200 updates of Adam (rate 0.1) on the same 200 pairs, while the weights stay, and in each
attention the heads with the lowest log alpha go. "Learned gates tell" holds for a share if BLEU is
higher than by importance, and does not if it is lower; nothing is tuned.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evidence import Evidence, of_jobs
from experiments.judging import Column, Rule, Value, at, claims, means
from experiments.short_demo import SHORT_DEMO, updates
from experiments.translations import bleu, pairs_of_test
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job

HEADS, ROW = 8, "8 heads"
GONE = {"a quarter": 2, "half": 4, "three quarters": 6}  # heads of each attention
LEAST, RANDOM, MOST = "least important", "random", "most important"
LEARNED, UPDATES = "learned gates", 200
WHOLE, ERRORS, NEIGHBOURS = "all heads", "alignment errors", "neighbour shares"
PAIRS, CHOSEN_BY, LOOKED_AT = 500, 200, 50
DRAWS, FAR, LITTLE = 2, 2, 1.0
RETRAINED = ("a quarter", "half")
FURTHER = {
    **updates(500),
    "train.warmup_steps": 50,
    "train.peak_learning_rate": 1e-3,
    "decode.beam_size": 1,
}
Scores = Mapping[str, np.ndarray]  # of each head, by attention


def closed(scores: Scores, gone: int) -> dict[str, np.ndarray]:
    """Gates: 0 for the heads with the lowest scores of each attention, else 1."""
    return {name: (own.argsort().argsort() >= gone).astype(float) for name, own in scores.items()}


def translated(run: Any, gates: Mapping[str, np.ndarray], sources: Sequence[str]) -> list[str]:
    """Translations by the run's model with these gates."""
    from transformer_jax.api import Run
    from transformer_jax.evaluation.head_importance import gated

    old = run.loaded.translator
    params = gated(old.params, gates)
    own = type(old)(old.model, params, old.decode, old.mesh)
    found: list[str] = Run(run.loaded._replace(translator=own)).translate(sources)
    return found


def neighbour_shares(run: Any, pairs: Sequence[Any]) -> dict[str, list[float]]:
    """The largest mean weight at one distance of at most FAR, for each self-attention's heads."""
    sums: dict[str, Any] = {}
    for pair in pairs:
        kinds = run.attention(pair.src, pair.tgt).kinds
        for kind in ("encoder", "decoder"):
            for layer, own_HLM in enumerate(kinds[kind].weights_NHLM):
                means = [
                    np.diagonal(own_HLM, far, 1, 2).sum(1) / own_HLM.shape[1]
                    for far in range(-FAR, FAR + 1)
                ]
                name = f"{kind}_{layer}/self_attention"
                sums[name] = sums.get(name, 0) + np.array(means) / len(pairs)
    return {name: own.max(0).tolist() for name, own in sums.items()}


def measured(job: Job) -> Evidence:
    """BLEU without heads that are chosen in each way, and what the heads do."""
    from transformer_jax.api import load
    from transformer_jax.evaluation.alignment import alignment_error_rates
    from transformer_jax.evaluation.head_importance import importance
    from transformer_jax.text.built_in_corpus import built_in_pairs

    run = load(job.folder, beam_size=1)
    model = run.loaded.model, run.loaded.translator.params
    scores = importance(
        *model, *run.loaded.line_translator().encode_pairs(built_in_pairs("valid", CHOSEN_BY))
    )
    ways = {LEAST: [scores], MOST: [{name: -own for name, own in scores.items()}]}
    draw = np.random.default_rng(job.seed)
    ways[RANDOM] = [
        {name: draw.random(len(own)) for name, own in scores.items()} for _ in range(DRAWS)
    ]
    pairs = pairs_of_test(PAIRS)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    found: Evidence = {WHOLE: bleu(run.translate(sources), references)}
    for way, choices in ways.items():
        for share, gone in GONE.items():
            each = [translated(run, closed(own, gone), sources) for own in choices]
            found[f"{way}, {share}"] = statistics.fmean(bleu(one, references) for one in each)
    errors_NH = alignment_error_rates(*model, run.loaded.vocabulary, pairs).heads_NH.tolist()
    found["importance"] = {name: own.tolist() for name, own in scores.items()}
    found[ERRORS] = {f"decoder_{n}/cross_attention": own for n, own in enumerate(errors_NH)}
    found[NEIGHBOURS] = neighbour_shares(run, pairs[:LOOKED_AT])
    return found


def trained_further(job: Job) -> Evidence:
    """BLEU after further training of the whole model, and of runs without some of its heads."""
    from transformer_jax.api import load, train
    from transformer_jax.commands.prune import prune

    pairs = pairs_of_test(PAIRS)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    found: Evidence = {}
    with tempfile.TemporaryDirectory() as scratch:
        origins = {WHOLE: job.folder}
        for way, by, seed in ((LEAST, "importance", None), (RANDOM, "random", job.seed)):
            for share in RETRAINED:
                folder = Path(scratch, by, share)
                part = GONE[share] / HEADS
                prune(str(job.folder), str(folder), heads=part, by=by, seed=seed)
                origins[f"{way}, {share}"] = folder
        for name, origin in origins.items():
            model = load(origin).config.model
            own = {f"model.{key}": getattr(model, key) for key in ("num_heads", "d_k", "d_v")}
            own |= {"train.init_from": str(origin), "seed": job.seed}
            folder = Path(scratch, "further", name)
            train(job.config_file, folder, {**job.overrides, **FURTHER, **own})
            found[name] = bleu(load(folder).translate(sources), references)
    return found


def by_learned_gates(job: Job) -> Evidence:
    """BLEU without the heads that learned gates choose."""
    from transformer_jax.api import load
    from transformer_jax.evaluation.learned_gates import learned_gates
    from transformer_jax.text.built_in_corpus import built_in_pairs

    run = load(job.folder, beam_size=1)
    model = run.loaded.model, run.loaded.translator.params
    sides = run.loaded.line_translator().encode_pairs(built_in_pairs("valid", CHOSEN_BY))
    scores = learned_gates(*model, *sides, UPDATES, job.seed)
    pairs = pairs_of_test(PAIRS)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    found: Evidence = {"log alpha": {name: own.tolist() for name, own in scores.items()}}
    for share, gone in GONE.items():
        found[share] = bleu(translated(run, closed(scores, gone), sources), references)
    return found


# Verdicts ------------------------------------------------------------------------------------


def stays(found: Evidence, what: str) -> float:
    """The mean of a measure over the half of the heads that stay, less that of those that go."""
    gates = closed({k: np.array(x) for k, x in found["importance"].items()}, HEADS // 2)
    pairs = [
        (value, gate)
        for name, own in found[what].items()
        for value, gate in zip(own, gates[name], strict=True)
    ]
    return statistics.fmean(x for x, gate in pairs if gate) - statistics.fmean(
        x for x, gate in pairs if not gate
    )


def less(one: str, other: str) -> Value:
    """A measure less another one of the same run."""
    return lambda found: found[one] - found[other]


def of_share(share: str, when: str = "") -> list[Rule]:
    """The claims about the least important heads of a share."""
    least, random = f"{LEAST}, {share}", f"{RANDOM}, {share}"
    return [
        Rule(f"importance tells ({share}{when})", less(least, random), 1, rows=(ROW,)),
        Rule(f"they can go ({share}{when})", less(WHOLE, least), -1, LITTLE, rows=(ROW,)),
    ]


def loses_more(share: str) -> Rule:
    """The claim about the most important heads of a share, the control."""
    most, random = f"{MOST}, {share}", f"{RANDOM}, {share}"
    return Rule(f"the control loses more ({share})", less(most, random), -1, rows=(ROW,))


RULES = [
    *(rule for share in GONE for rule in (*of_share(share), loses_more(share))),
    Rule("aligning heads stay", lambda x: stays(x, ERRORS), -1, rows=(ROW,)),
    Rule("neighbours stay", lambda x: stays(x, NEIGHBOURS), 1, rows=(ROW,)),
]
FURTHER_RULES = [rule for share in RETRAINED for rule in of_share(share, ", trained further")]
GATES_RULES = [  # about learned gates, beside importance
    Rule(f"learned gates tell ({share})", less(share, f"{LEAST}, {share}"), 1, rows=(ROW,))
    for share in GONE
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and BLEU by what goes."""
    found = of_jobs(folder, jobs, measured)
    names = [WHOLE, *(f"{way}, {share}" for way in (LEAST, RANDOM, MOST) for share in GONE)]
    further = of_jobs(folder, jobs, trained_further, ", trained further")
    learned = of_jobs(folder, jobs, by_learned_gates, f", {LEARNED}")
    retrained = [WHOLE, *(f"{way}, {share}" for way in (LEAST, RANDOM) for share in RETRAINED)]
    both = {key: {**found[key], **own} for key, own in learned.items() if key in found}
    asked = ((RULES, found), (FURTHER_RULES, further), (GATES_RULES, both))
    verdicts = [row for rules, of_runs in asked for row in claims(rules, of_runs).rows]
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict"], verdicts),
        Heading("BLEU by the heads that go"),
        means([Column(name, at(name), ".1f") for name in names], found, [ROW]),
        Heading("By learned gates"),
        means([Column(share, at(share), ".1f") for share in GONE], learned, [ROW]),
        Heading("The same after further training"),
        means([Column(name, at(name), ".1f") for name in retrained], further, [ROW]),
    ]


EXPERIMENT = Experiment(
    name="pruning",
    rows={ROW: {"model.num_heads": HEADS}},
    scales={"small": SHORT_DEMO},
    about=__doc__,
    findings=findings,
    fixed=("data", "model.num_heads"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
