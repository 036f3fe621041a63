"""PE(pos + k) is a linear function of PE(pos), for sinusoids (section 3.5).

The matrix is constructed of rotations, and its error is measured without training.

Dimension key
  L length   D d_model
"""

import numpy as np

from experiments.claims.judging import Claim, Finding, Known, Probe
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS
from transformer_jax.reporting.page import Table

CLAIM = Claim("PE(pos + k) is a linear function of PE(pos)", "section 3.5")
OFFSETS, PLACES = (1, 2, 10, 100), 1_000  # k of PE(pos + k), and the number of positions


def shift_matrix(offset: int, d_model: int) -> np.ndarray:
    """M with M PE(pos) = PE(pos + offset) for every pos: float64 `[d_model, d_model]`.

    By the sum formulas of sine and cosine, M has for each pair of a sine and a cosine a block
    [[cos, sin], [-sin, cos]] of the angle offset / 10000^(2i / d_model).

    Source: Vaswani et al. 2017, section 3.5.
    """
    matrix = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = offset / 10_000.0 ** (i / d_model)
        sine = np.sin(angle)
        cosine = np.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    return matrix


def shifts_of_positions(d_model: int = 512) -> Evidence:
    """How far M PE(pos) is from PE(pos + k), and the same for random vectors with the best M.

    Errors are relative: the norm of the difference divided by the norm of the shifted vectors.
    """
    from transformer_jax.model.positions.choices import sinusoids

    found: Evidence = {}
    random_LD = np.random.default_rng(0).normal(size=(PLACES + max(OFFSETS), d_model))
    table_LD = sinusoids(PLACES + max(OFFSETS), d_model).astype(np.float64)
    for k in OFFSETS:
        before = table_LD[:PLACES]
        after = table_LD[k : PLACES + k]
        best, *_ = np.linalg.lstsq(random_LD[:PLACES], random_LD[k : PLACES + k])
        found[str(k)] = {
            "sinusoids": _relative(before @ shift_matrix(k, d_model).T, after),
            "random": _relative(random_LD[:PLACES] @ best, random_LD[k : PLACES + k]),
        }
    return found


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


PROBE = Probe("shifts of positions", shifts_of_positions)


def findings(known: Known) -> list[Finding]:
    """The largest error over the offsets must be that of float32."""
    found = known.evidence[PROBE.name]
    rows = [[k, f"{one['sinusoids']:.1e}", f"{one['random']:.2f}"] for k, one in found.items()]
    worst = max(one["sinusoids"] for one in found.values())
    head = ["k", "M PE(pos) from PE(pos + k)", "the best M for random vectors"]
    because = (
        f"the matrix, constructed of rotations, has a relative error of {worst:.0e} over all of "
        "1,000 positions, at most for any k (float32 tables)"
    )
    table = Table(head, rows, "Relative errors, d_model 512")
    return [CLAIM.is_found(HOLDS if worst < 1e-6 else FAILS, because, table)]
