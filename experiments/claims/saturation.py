"""Without scaling, softmax saturates at large d_k and has extremely small gradients.

The paper suspects this and therefore divides scores by sqrt(d_k) (section 3.2.1, footnote 4). It is
measured without training, on random vectors and on attention as it is initialized.

Dimension key
  B batch   L length   M keys   H heads   K d_k   D d_model
"""

from typing import Any

import numpy as np

from experiments.claims.judging import Claim, Finding, Known, Probe
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS
from transformer_jax.reporting.page import Part, Picture, Table
from transformer_jax.reporting.plots import BLUE, VERMILION, finish_axes, new_figure, save_figure

SATURATES = Claim("Without scaling, softmax saturates at large d_k", "section 3.2.1")
SMALL_GRADIENTS = Claim(
    "Without scaling, softmax has extremely small gradients at large d_k", "section 3.2.1"
)
SATURATED, TINY = 0.2, 0.1  # limits of entropy and gradient, relative to those with scaling

KEYS_SIZES = (8, 16, 32, 64, 128, 256, 512, 1_024)  # d_k
PAPER_D_K = "64"
KEYS, QUERIES, D_V, D_MODEL = 64, 512, 64, 512
SCORE_OF = {"scaled": "scaled_dot", "not scaled": "dot"}
SETTINGS = {
    "ideal": "Queries and keys of independent entries with variance 1; entropy in nats (at most "
    "ln 64 = 4.16), gradient: norm of the softmax's Jacobian",
    "block": "One head as it is initialized, d_model 512, d_v 64; gradient: norm of the queries' "
    "and keys' projections' gradient along a random direction of the output",
}
AXES = {"entropy": "entropy (nats)", "gradient": "norm of the softmax's Jacobian"}


def scaling_at_the_start() -> Evidence:
    """Entropy of attention's weights and norms of gradients over d_k, with and without scaling.

    It is measured for queries and keys of independent entries with variance 1, as the paper argues
    (section 3.2.1, footnote 4), and for the attention block after initialization.
    """
    return {
        str(d_k): {
            how: {"ideal": _ideal(d_k, score), "block": _block(d_k, score)}
            for how, score in SCORE_OF.items()
        }
        for d_k in KEYS_SIZES
    }


def _ideal(d_k: int, score: str) -> Evidence:
    import jax.numpy as jnp

    from transformer_jax.model.attention.normalizers import softmax
    from transformer_jax.model.attention.scores import SCORES

    draw = np.random.default_rng(d_k)
    query_1L1K = jnp.asarray(draw.normal(size=(1, QUERIES, 1, d_k)), jnp.float32)
    key_1M1K = jnp.asarray(draw.normal(size=(1, KEYS, 1, d_k)), jnp.float32)
    scores = SCORES[score].compute({}, query_1L1K, key_1M1K)
    p_LM = np.asarray(softmax(scores, jnp.ones((1, 1, 1, 1), bool))[0, 0], np.float64)
    # The Jacobian of a query's weights is diag(p) - p p^T; its norm scales the gradient.
    jacobian_LMM = np.einsum("LM,MN->LMN", p_LM, np.eye(KEYS)) - p_LM[:, :, None] * p_LM[:, None]
    gradient = float(np.linalg.norm(jacobian_LMM, axis=(1, 2)).mean())
    return {"entropy": _entropy(p_LM), "gradient": gradient}


def _block(d_k: int, score: str) -> Evidence:
    """Entropy and gradient of one head over inputs of variance 1, as LayerNorm gives them."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.config.model import ModelConfig
    from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
    from transformer_jax.model.axes import unboxed

    draw = np.random.default_rng(d_k)
    x_BLD, direction_BLD = (
        jnp.asarray(draw.normal(size=(QUERIES // KEYS, KEYS, D_MODEL)), jnp.float32)
        for _ in range(2)
    )
    sizes = ModelConfig(d_model=D_MODEL, num_heads=1, d_k=d_k, d_v=D_V)
    block = MultiHeadAttention(sizes, score)

    def run(module: Any, x_BLD: Any) -> Any:
        everywhere = jnp.ones((1, 1, 1, 1), bool)
        queries = module.queries(x_BLD)
        keys, values = module.keys_values(x_BLD)
        heads, weights = attend(queries, keys, values, everywhere, score=module.scores)
        return module.joined(heads, x_BLD), weights

    params = unboxed(block.init(jax.random.key(d_k), x_BLD, method=run)["params"])

    def along(params: Any) -> Any:
        y_BLD, weights_BHLM = block.apply({"params": params}, x_BLD, method=run)
        return (y_BLD * direction_BLD).sum(), weights_BHLM

    gradient, weights_BHLM = jax.grad(along, has_aux=True)(params)
    norms = [float(jnp.linalg.norm(gradient[name])) for name in ("query", "key")]
    entropy = _entropy(np.asarray(weights_BHLM, np.float64))
    return {"entropy": entropy, "gradient": float(np.hypot(*norms))}


def _entropy(p: np.ndarray) -> float:
    """Mean entropy in nats of distributions `[..., outcomes]`."""
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean())


PROBE = Probe("scaling at the start", scaling_at_the_start)


def findings(known: Known) -> list[Finding]:
    """Compares entropy and gradient without scaling with those with scaling."""
    measured = known.evidence[PROBE.name]
    largest = max(measured, key=int)

    def share(setting: str, what: str, d_k: str) -> float:
        scaled, plain = (measured[d_k][how][setting][what] for how in SCORE_OF)
        return plain / scaled

    entropy, gradient = (share("ideal", what, largest) for what in ("entropy", "gradient"))
    return [
        SATURATES.is_found(
            HOLDS if entropy < SATURATED else FAILS,
            f"without scaling the entropy of its weights is {entropy:.0%} of that with scaling at "
            f"d_k {largest}, {share('ideal', 'entropy', PAPER_D_K):.0%} at {PAPER_D_K}",
            *(_table(measured, setting) for setting in SETTINGS),
            _plot(known, measured),
        ),
        SMALL_GRADIENTS.is_found(
            HOLDS if gradient < TINY else FAILS,
            f"without scaling the norm of its Jacobian is {gradient:.0%} of that with scaling at "
            f"d_k {largest}, {share('ideal', 'gradient', PAPER_D_K):.0%} at {PAPER_D_K}; the "
            "gradient of queries' and keys' projections, which has a factor of sqrt(d_k) more, is "
            f"{share('block', 'gradient', largest):.0%} at {largest}; extremely small would be "
            f"below {TINY:.0%}",
        ),
    ]


def _table(measured: Evidence, setting: str) -> Part:
    cells = [(what, how) for what in AXES for how in SCORE_OF]
    rows = [
        [d_k, *(f"{one[how][setting][what]:.3f}" for what, how in cells)]
        for d_k, one in measured.items()
    ]
    return Table(["d_k", *(f"{what}, {how}" for what, how in cells)], rows, SETTINGS[setting])


def _plot(known: Known, measured: Evidence) -> Part:
    figure = new_figure(8.0, 3.2)
    sizes = [int(d_k) for d_k in measured]
    for axes, what in zip(figure.subplots(1, 2), AXES, strict=True):
        for how, color in zip(SCORE_OF, (BLUE, VERMILION), strict=True):
            values = [measured[str(d_k)][how]["ideal"][what] for d_k in sizes]
            axes.plot(sizes, values, "o-", color=color, markersize=4, label=how)
        axes.set_xscale("log", base=2)
        finish_axes(axes, "d_k", AXES[what])
    axes.legend(frameon=False)
    path = save_figure(figure, known.folder / "scaling.png")
    return Picture(path, "Softmax over scores of entries with variance 1")
