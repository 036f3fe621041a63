"""The evidence for the claims, except scores: measurements, and probes of trained runs.

Dimension key
  B batch   L length   M keys   H heads   K d_k   D d_model   N layers
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.files import read_json, write_atomically
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import hypotheses, references

log = logging.getLogger(__name__)
Evidence = dict[str, Any]  # what JSON can hold

# Rows of the experiment.
REFERENCE, NO_POSITIONS = "reference", "no positions"
SHORT_SINUSOIDAL, SHORT_LEARNED = "short sentences, sinusoidal", "short sentences, learned"

KEYS_SIZES = (8, 16, 32, 64, 128, 256, 512, 1_024)  # d_k
KEYS, QUERIES, D_V = 64, 512, 64  # sizes in a measurement
OFFSETS, PLACES = (1, 2, 10, 100), 1_000  # k of PE(pos + k), and the number of positions
LAST_LENGTHS = (12, 16, 20, 512)  # longest source of each bin: subwords, with end sign
SHUFFLED = 200  # sentences
ALIGNED = 500  # sentence pairs
COUNTED, VALIDATED = 20_000, 500  # sentence pairs


class Probe(NamedTuple):
    """A question, and the rows whose runs answer it."""

    rows: tuple[str, ...]
    ask: Callable[..., Evidence]  # takes the rows' jobs


def gather(path: Path, jobs: Sequence[Job]) -> Evidence:
    """The recorded evidence, with what existing runs of the first seed can add to it."""
    first = {job.row: job for job in jobs if job.seed == jobs[0].seed}
    asked = {name: ([first[row] for row in one.rows], one.ask) for name, one in PROBES.items()}
    return answers(path, asked)


def answers(
    path: Path, asked: Mapping[str, tuple[Sequence[Job], Callable[..., Evidence]]]
) -> Evidence:
    """The recorded answers, by the names of the questions; existing runs answer new questions.

    Args:
      path: the file of the answers; it may not exist yet.
      asked: by name, the jobs and the question, a function of these jobs.
    """
    kept: Evidence = read_json(path) if path.exists() else {}
    for name, (own, ask) in asked.items():
        configs = [digest_of(job.config()) for job in own]
        if kept.get(name, {}).get("configs") == configs:
            continue
        kept.pop(name, None)  # it came from other runs
        if all(map(_is_done, own)):
            log.info("evidence: %s", name)
            kept[name] = {"configs": configs, "found": ask(*own)}
        write_atomically(path, (json.dumps(kept, indent=1) + "\n").encode())
    return {name: entry["found"] for name, entry in kept.items()}


def _is_done(job: Job) -> bool:
    return job.folder.exists() and hypotheses(job) is not None


# Scaling by 1 / sqrt(d_k) -----------------------------------------------------------------------


def scaling_at_the_start() -> Evidence:
    """Entropy of attention's weights and norms of gradients over d_k, with and without scaling.

    It is measured for queries and keys of independent entries with variance 1, as the paper argues
    (section 3.2.1, footnote 4), and for the attention block after initialization.
    """
    return {
        str(d_k): {
            name: {"ideal": _ideal(d_k, scaled), "block": _block(d_k, scaled)}
            for name, scaled in (("scaled", True), ("not scaled", False))
        }
        for d_k in KEYS_SIZES
    }


def _ideal(d_k: int, scaled: bool) -> Evidence:
    import jax.numpy as jnp

    from transformer_jax.model.normalizers import softmax
    from transformer_jax.model.scores import SCORES

    draw = np.random.default_rng(d_k)
    query_1L1K = jnp.asarray(draw.normal(size=(1, QUERIES, 1, d_k)), jnp.float32)
    key_1M1K = jnp.asarray(draw.normal(size=(1, KEYS, 1, d_k)), jnp.float32)
    scores = SCORES[_score(scaled)].compute({}, query_1L1K, key_1M1K)
    p_LM = np.asarray(softmax(scores, jnp.ones((1, 1, 1, 1), bool))[0, 0], np.float64)
    # The Jacobian of a query's weights is diag(p) - p p^T; its norm scales the gradient.
    jacobian_LMM = np.einsum("LM,MN->LMN", p_LM, np.eye(KEYS)) - p_LM[:, :, None] * p_LM[:, None]
    return {
        "entropy": _entropy(p_LM),
        "gradient": float(np.linalg.norm(jacobian_LMM, axis=(1, 2)).mean()),
    }


def _block(d_k: int, scaled: bool, d_model: int = 512) -> Evidence:
    """Entropy and gradient of one head over inputs of variance 1, as LayerNorm gives them."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.config.schema import ModelConfig
    from transformer_jax.model.attention import MultiHeadAttention, attend
    from transformer_jax.model.axes import unboxed

    draw = np.random.default_rng(d_k)
    x_BLD, direction_BLD = (
        jnp.asarray(draw.normal(size=(QUERIES // KEYS, KEYS, d_model)), jnp.float32)
        for _ in range(2)
    )
    sizes = ModelConfig(d_model=d_model, num_heads=1, d_k=d_k, d_v=D_V)
    block = MultiHeadAttention(sizes, _score(scaled))

    def run(module: Any, x_BLD: Any) -> Any:
        everywhere = jnp.ones((1, 1, 1, 1), bool)
        queries, (keys, values) = module.queries(x_BLD), module.keys_values(x_BLD)
        heads, weights = attend(queries, keys, values, everywhere, score=module.scores)
        return module.joined(heads), weights

    params = unboxed(block.init(jax.random.key(d_k), x_BLD, method=run)["params"])

    def along(params: Any) -> Any:
        y_BLD, weights_BHLM = block.apply({"params": params}, x_BLD, method=run)
        return (y_BLD * direction_BLD).sum(), weights_BHLM

    gradient, weights_BHLM = jax.grad(along, has_aux=True)(params)
    norms = [float(jnp.linalg.norm(gradient[name])) for name in ("query", "key")]
    return {
        "entropy": _entropy(np.asarray(weights_BHLM, np.float64)),
        "gradient": float(np.hypot(*norms)),
    }


def _score(scaled: bool) -> str:
    return "scaled_dot" if scaled else "dot"


def _entropy(p: np.ndarray) -> float:
    """Mean entropy in nats of distributions `[..., outcomes]`."""
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean())


# Sinusoids --------------------------------------------------------------------------------------


def shift_matrix(offset: int, d_model: int) -> np.ndarray:
    """M with M PE(pos) = PE(pos + offset) for every pos: float64 `[d_model, d_model]`.

    By the sum formulas of sine and cosine, M has for each pair of a sine and a cosine a block
    [[cos, sin], [-sin, cos]] of the angle offset / 10000^(2i / d_model).

    Source: Vaswani et al. 2017, section 3.5.
    """
    matrix = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = offset / 10_000.0 ** (i / d_model)
        sine, cosine = np.sin(angle), np.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    return matrix


def shifts_of_positions(d_model: int = 512) -> Evidence:
    """How far M PE(pos) is from PE(pos + k), and the same for random vectors with the best M.

    Errors are relative: the norm of the difference divided by the norm of the shifted vectors.
    """
    from transformer_jax.model.positions import sinusoids

    found: Evidence = {}
    random_LD = np.random.default_rng(0).normal(size=(PLACES + max(OFFSETS), d_model))
    table_LD = sinusoids(PLACES + max(OFFSETS), d_model).astype(np.float64)
    for k in OFFSETS:
        before, after = table_LD[:PLACES], table_LD[k : PLACES + k]
        best, *_ = np.linalg.lstsq(random_LD[:PLACES], random_LD[k : PLACES + k])
        found[str(k)] = {
            "sinusoids": _relative(before @ shift_matrix(k, d_model).T, after),
            "random": _relative(random_LD[:PLACES] @ best, random_LD[k : PLACES + k]),
        }
    return found


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


# Probes of trained runs -------------------------------------------------------------------------


def bleu_by_length(*jobs: Job) -> Evidence:
    """BLEU of the test split in bins of the source's length in subwords, by row."""
    from transformer_jax.commands.loading import load_model

    sources, wanted = references(jobs[0])
    vocabulary = load_model(str(jobs[0].folder)).vocabulary
    lengths = [len(ids) + 1 for ids in vocabulary.encode_lines(sources)]
    bins = np.searchsorted(LAST_LENGTHS, lengths)
    found: Evidence = {"sentences": np.bincount(bins, minlength=len(LAST_LENGTHS)).tolist()}
    for job in jobs:
        outputs = hypotheses(job) or []
        found[job.row] = [
            _bleu([(outputs[i], wanted[i]) for i in np.flatnonzero(bins == n)])
            for n in range(len(LAST_LENGTHS))
        ]
        found[job.row].append(_bleu([(outputs[i], wanted[i]) for i in np.flatnonzero(bins > 0)]))
    return found


def _bleu(pairs: Sequence[tuple[str, str]]) -> float:
    """BLEU of (hypothesis, reference) pairs; NaN if there are none."""
    import sacrebleu

    if not pairs:
        return math.nan
    outputs, wanted = zip(*pairs, strict=True)
    return float(sacrebleu.corpus_bleu(list(outputs), [list(wanted)]).score)


def word_order(*jobs: Job) -> Evidence:
    """How a model translates sources with shuffled subwords, and which errors it makes.

    It returns shares by row. "same": shuffled sources with the same translation as the original
    source. "exact": translations of the test split that equal the reference. "order": translations
    that have the words of the reference, each equally often, in another order.
    """
    return {job.row: _word_order(job) for job in jobs}


def _word_order(job: Job) -> Evidence:
    from transformer_jax.commands.loading import load_model

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


def alignment(job: Job) -> Evidence:
    """Alignment error rates of encoder-decoder attention in forced decoding of the reference."""
    from transformer_jax.commands.loading import load_model
    from transformer_jax.evaluation.alignment import alignment_error_rates
    from transformer_jax.grammar import generate

    pairs = generate("test", ALIGNED)
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


def frequencies(job: Job) -> Evidence:
    """Perplexity of the validation split for a model that knows only the subwords' frequencies."""
    from transformer_jax.commands.loading import load_model
    from transformer_jax.grammar import generate

    vocabulary = load_model(str(job.folder)).vocabulary
    counts_of = {}
    for split, pairs in (("train", COUNTED), ("valid", VALIDATED)):
        sentences = vocabulary.encode_lines([pair.tgt for pair in generate(split, pairs)])
        counts = np.bincount(np.concatenate(sentences), minlength=vocabulary.size)
        counts_of[split] = np.append(counts, len(sentences))  # the end signs
    p = (counts_of["train"] + 1) / (counts_of["train"] + 1).sum()
    seen = counts_of["valid"] / counts_of["valid"].sum()
    return {"perplexity": float(np.exp(-(seen * np.log(p)).sum()))}


PROBES: Mapping[str, Probe] = {
    "scaling at the start": Probe((), scaling_at_the_start),
    "shifts of positions": Probe((), shifts_of_positions),
    "lengths": Probe((REFERENCE, SHORT_SINUSOIDAL, SHORT_LEARNED), bleu_by_length),
    "word order": Probe((REFERENCE, NO_POSITIONS), word_order),
    "alignment": Probe((REFERENCE,), alignment),
    "frequencies": Probe((REFERENCE,), frequencies),
}
