"""Table 1's layers against slow float64 references; their counts; the command at small scale."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import table1_layer_cost as table1
from experiments import table1_report, table1_results
from experiments.layer_chains import PRODUCTS, longest_chain
from experiments.layer_kinds import (
    KINDS,
    LSTMParams,
    Sizes,
    attention_core,
    convolution,
    lstm,
    products_in_sequence,
    reach,
    restricted_attention,
    restricted_core,
)
from tests.fixtures.tiny import relative_error
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.use.command_line import exit_status

B, L, H, K, V = 2, 11, 3, 4, 5
D = H * K
DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(B, L, D))


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def band(length, r):
    """Pairs of positions at most (r - 1) / 2 apart."""
    return np.abs(np.subtract.outer(np.arange(length), np.arange(length))) <= (r - 1) // 2


# The layers ------------------------------------------------------------------------------------


def attention_by_hand(query, key, value, mask):
    """Equation 1, one query at a time, over the keys that it may see."""
    want = np.zeros((*query.shape[:3], value.shape[3]))
    for b, i, h in np.ndindex(*query.shape[:3]):
        seen = np.flatnonzero(mask[i])
        weight = np.exp(key[b, seen, h] @ query[b, i, h] / np.sqrt(query.shape[3]))
        want[b, i, h] = weight / weight.sum() @ value[b, seen, h]
    return want


@pytest.mark.parametrize("r", [None, 1, 5])
def test_attention_alone_equals_equation_1_of_x_with_itself(r):
    heads = X.reshape(B, L, H, K)
    mask = np.ones((L, L), bool) if r is None else band(L, r)
    want = attention_by_hand(heads, heads, heads, mask).reshape(B, L, D)
    x_BLD = float32(X)
    got = attention_core(x_BLD, H) if r is None else restricted_core(x_BLD, H, r)
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("kind", ["self-attention", "restricted"])
def test_an_attention_layer_projects_attends_and_joins_its_heads(kind):
    names = ("query", "key", "value")
    weights = {name: DRAW.normal(size=(D, H, K)) / 2 for name in names}
    out = DRAW.normal(size=(H, K, D))
    mask = band(L, 5) if kind == "restricted" else np.ones((L, L), bool)
    projected = [np.einsum("bld,dhk->blhk", X, weights[name]) for name in names]
    want = np.einsum("blhk,hkd->bld", attention_by_hand(*projected, mask), out)
    params = float32({"params": {**weights, "out": out}})
    got = KINDS[kind].apply(params, float32(X), Sizes(L, D, H, r=5))
    assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize(("length", "r"), [(11, 3), (12, 3), (10, 5), (7, 9), (3, 9), (4, 1)])
def test_restricted_attention_is_dense_attention_with_a_band_for_a_mask(length, r):
    """Compares values and gradients; a length may fill its blocks, or not, or be below a block."""
    arrays = float32([DRAW.normal(size=(B, length, H, size)) for size in (K, K, V)])
    weights = float32(DRAW.normal(size=(B, length, H, V)))
    mask = band(length, r)[None, None]

    def total(arrays, attend):
        heads = attend(*arrays)
        return (heads * weights).sum(), heads

    both = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    (_, got), got_grads = both(arrays, lambda q, k, v: restricted_attention(q, k, v, r))
    (_, want), want_grads = both(arrays, lambda q, k, v: attend(q, k, v, mask)[0])
    assert relative_error(got, want) < 1e-5
    for got, want in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_neighborhood_without_a_middle_is_refused():
    with pytest.raises(ValueError, match="4 has no middle"):
        restricted_core(float32(X), H, 4)


def test_an_lstm_equals_its_equations_one_position_at_a_time():
    params = LSTMParams(*(DRAW.normal(size=shape) for shape in [(D, 4 * D), (D, 4 * D), 4 * D]))
    hidden = np.zeros((B, D))
    cell = np.zeros((B, D))
    want = np.zeros((B, L, D))
    for i in range(L):
        gates = X[:, i] @ params.input_DG + hidden @ params.recurrent_DG + params.bias_G
        enter, forget, leave = (1 / (1 + np.exp(-gates[:, g * D : g * D + D])) for g in (0, 1, 3))
        cell = forget * cell + enter * np.tanh(gates[:, 2 * D : 3 * D])
        want[:, i] = hidden = leave * np.tanh(cell)
    got = lstm(float32(params), float32(X))
    assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_convolution_sums_the_places_around_a_position(dilation):
    kernel = DRAW.normal(size=(5, D, D))
    want = np.zeros((B, L, D))
    for b, i, w in np.ndindex(B, L, 5):
        place = i + (w - 2) * dilation
        if 0 <= place < L:
            want[b, i] += X[b, place] @ kernel[w]
    got = convolution(*float32((kernel, X)), dilation)
    assert relative_error(got, want) < 1e-6


# What is counted -------------------------------------------------------------------------------


def product_flops(jaxpr):
    """FLOPs of the products, by their shapes; a scan's body counts once per step."""
    total = 0
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if equation.primitive.name == "cond":  # the choice of a platform
            total += max(product_flops(branch.jaxpr) for branch in equation.params["branches"])
        elif inner is not None:
            times = equation.params.get("length", 1)
            total += times * product_flops(getattr(inner, "jaxpr", inner))
        elif equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            depth = np.prod([left[axis] for axis in contracted])
            total += 2 * equation.outvars[0].aval.size * int(depth)
        elif equation.primitive.name in PRODUCTS:
            kernel = equation.invars[1].aval.shape  # [k, d, d]
            total += 2 * equation.outvars[0].aval.size * kernel[0] * kernel[1]
    return total


def shapes(kind, sizes, batch=1):
    return kind.shapes(sizes), jax.ShapeDtypeStruct((batch, sizes.n, sizes.d), jnp.float32)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sizes", [Sizes(14, 12, 3, 3, 5), Sizes(15, 8, 2, 5, 5)])
def test_flops_by_closed_form_are_those_of_the_traced_products(name, sizes):
    kind = KINDS[name]
    params, x_BLD = shapes(kind, sizes, batch=2)

    def total(params, x_BLD):
        return kind.apply(params, x_BLD, sizes).sum()

    forward = jax.make_jaxpr(total)(params, x_BLD).jaxpr
    assert product_flops(forward) == 2 * kind.flops(sizes)
    if name != "convolution":  # whose gradient's traced shapes hold the padding
        both = jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(params, x_BLD).jaxpr
        assert product_flops(both) == 3 * 2 * kind.flops(sizes)


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("self-attention alone", {5: 2, 9: 2}),
        ("self-attention", {5: 4, 9: 4}),
        ("recurrent", {5: 5, 9: 9}),
        ("convolution", {5: 1, 9: 1}),
        ("restricted alone", {5: 2, 9: 2}),
        ("restricted", {5: 4, 9: 4}),
    ],
)
def test_only_recurrence_has_operations_in_sequence_that_grow_with_the_length(name, chain):
    got = {n: products_in_sequence(KINDS[name], Sizes(n, 8, 2, 3, 5)) for n in chain}
    assert got == chain


def test_the_recurrence_has_one_scan_over_the_length():
    params, x_BLD = shapes(KINDS["recurrent"], Sizes(7, 4))
    jaxpr = jax.make_jaxpr(lstm)(params, x_BLD).jaxpr
    scans = [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert scans == [7]


def test_a_chain_counts_what_waits_and_nothing_beside_it():
    x = jnp.ones((3, 3))
    assert longest_chain(lambda x: (x @ x) @ (x @ x) + x @ x, x) == 2
    assert longest_chain(lambda x: x + 1, x) == 0
    assert longest_chain(jax.jit(lambda x: jax.nn.softmax(x @ x) @ x), x) == 2

    def aside(carry, x):  # one product per step, which no other step needs
        return carry + 1, x @ x

    assert longest_chain(lambda x: jax.lax.scan(aside, 0.0, jnp.stack([x] * 6))[1], x) == 1


def test_gradients_reach_as_far_as_the_layers_say():
    sizes = Sizes(12, 4, 2, 3, 5)
    assert reach(KINDS["self-attention"], sizes) == (12, 11, 1)
    assert reach(KINDS["recurrent"], sizes) == (6, 11, None)  # from the 7th of 12 to the last
    assert reach(KINDS["convolution"], sizes) == (3, 1, 11)
    assert reach(KINDS["convolution"], sizes._replace(k=5)) == (5, 2, 6)
    assert reach(KINDS["convolution"], sizes, dilated=True) == (3, 1, 4)  # 2^4 >= 12 > 2^3
    assert reach(KINDS["restricted"], sizes) == (5, 2, 6)


def test_memory_of_restricted_attention_grows_with_the_length_and_of_dense_with_its_square():
    growth = {}
    for kind in ("restricted alone", "self-attention alone"):
        less, more = (table1.compile_point(kind, Sizes(n, 8, r=9), 1).memory for n in (288, 1152))
        growth[kind] = more / less
    assert growth["restricted alone"] < 5 < 12 < growth["self-attention alone"]


# Measuring -------------------------------------------------------------------------------------


def test_a_visit_is_the_median_of_its_calls_in_milliseconds(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 14.0, 20.0, 22.0, 30.0, 30.0])
    monkeypatch.setattr(table1.time, "perf_counter", lambda: next(clock))
    assert table1.visit(lambda: None, seconds=6.5) == 2000  # 1, 4 and 2 s; then the time is over


def test_points_are_visited_there_and_back(monkeypatch, tmp_path):
    visited = []
    clock = iter(range(1, 1000))

    def visit(run, seconds):
        visited.append(run)
        return float(next(clock))

    names = iter(range(100))
    monkeypatch.setattr(table1, "visit", visit)
    monkeypatch.setattr(table1, "points", lambda plan: [("recurrent", Sizes(n, 4)) for n in (8, 9)])
    monkeypatch.setattr(table1, "path_rows", lambda plan, made_by: [])
    monkeypatch.setattr(table1, "compile_point", lambda *_: table1.Point(Run(names), Run(names), 7))
    table1.measure(table1.PLANS["small"], 3, tmp_path, "a command")
    assert [run.name for run in visited] == [0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3]
    rows = table1_results.read_rows(tmp_path / "results.csv")
    assert [(row.n, row.memory_bytes) for row in rows] == [(8, 7), (9, 7)]
    assert [row.forward_ms for row in rows] == [7, 5]  # medians of 1, 7, 9 and of 3, 5, 11
    assert rows[0].forward_flops == 2 * KINDS["recurrent"].flops(Sizes(8, 4))


class Run:
    """A function with a name."""

    def __init__(self, names):
        self.name = next(names)

    def __call__(self):
        pass


# Fits ------------------------------------------------------------------------------------------


def test_a_power_law_s_exponents_are_recovered():
    sizes = [(n, d) for n in (16, 64, 256) for d in (8, 32)]
    got = table1_results.exponents(sizes, [3e-4 * n**2 * d**0.5 for n, d in sizes])
    assert [e.value for e in got] == pytest.approx([2.0, 0.5])
    assert [e.error for e in got] == pytest.approx([0, 0], abs=1e-12)


def test_an_exponent_s_error_is_the_textbook_s():
    values = np.exp([0.0, 1.1, 1.9, 3.2])
    (got,) = table1_results.exponents([(np.exp(i),) for i in range(4)], values)
    # Least squares by hand: mean of x 1.5, of y 1.55; Sxy = 5.2, Sxx = 5; slope 1.04.
    residuals = np.log(values) - 1.55 - 1.04 * (np.arange(4) - 1.5)
    assert got.value == pytest.approx(1.04)
    assert got.error == pytest.approx(np.sqrt((residuals**2).sum() / 2 / 5))


def test_curves_cross_where_their_power_laws_do():
    lengths = [16, 64, 256]
    line = [100.0 * n for n in lengths]
    assert table1_results.crossing(lengths, [n**2 for n in lengths], line) == "100"
    assert table1_results.crossing(lengths, [200.0 * n for n in lengths], line) == "≤ 16"
    assert table1_results.crossing(lengths, [n**1.5 for n in lengths], line) == "> 256"
    assert table1_results.crossing([1024, 4096], [1.0, 4.0], [2.0, 2.0]) == "2,048"


# The report ------------------------------------------------------------------------------------


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["table1_layer_cost", *flags])
    return exit_status(table1.main)


LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
WIDTHS = (64, 128, 256, 512)


def rows_of_laws():
    """Rows whose time is 5 ms more than the counted FLOPs take, with memory of the same law."""
    made_by = ("some device", "2030-01-02", "abc1234", "a command")
    for kind, sizes in table1.points(table1.PLANS["paper"]):
        flops = KINDS[kind].flops(sizes)
        times = 5 + flops / 1e8, 5 + 3 * flops / 1e8
        memory = 4 * flops if sizes.n >= 256 <= sizes.d else 1
        rest = (1, *times, memory, flops, *[None] * 4, *made_by)
        windows = (sizes.k, None) if kind == "convolution" else (None, None)
        windows = (None, sizes.r) if kind.startswith("restricted") else windows
        yield table1_results.Row(kind, sizes.n, sizes.d, *windows, *rest)
    for kind, counts in {"recurrent": (4, 7, None), table1_results.DILATED: (1, 1, 3)}.items():
        window = 3 if kind == table1_results.DILATED else None
        yield table1_results.Row(
            kind, 8, 4, window, None, 1, None, None, None, 64, 8, *counts, *made_by
        )


@pytest.fixture
def recorded(tmp_path):
    table1_results.write_rows(tmp_path / "results.csv", list(rows_of_laws()))
    return tmp_path


def test_rows_are_read_as_they_were_written(recorded):
    assert table1_results.read_rows(recorded / "results.csv") == list(rows_of_laws())


def test_tables_are_fitted_to_the_upper_half_at_the_usual_window(recorded):
    results = table1_results.Results(table1_results.read_rows(recorded / "results.csv"))
    assert (tuple(results.lengths), tuple(results.widths)) == (LENGTHS, WIDTHS)
    laws = {kind: results.law(kind, "forward_flops", errors=False) for kind in KINDS}
    assert laws["self-attention alone"] == "n^2.00 d^1.00"
    assert laws["recurrent"] == "n^1.00 d^2.00"
    assert laws["convolution"] == "k^1.00 n^1.00 d^2.00"
    assert results.law("self-attention alone", "memory_bytes", errors=False) == "n^2.00 d^1.00"
    table = table1_report.crossing_table(results)
    by_name = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [row["FLOPs, alone"] for row in by_name] == ["256", "512", "1,024", "2,048"]
    assert [row["FLOPs, layer"] for row in by_name] == ["128", "256", "512", "1,024"]
    assert len({row["forward, alone"] for row in by_name}) == 4


def test_the_report_is_made_from_the_recorded_rows_alone(recorded, monkeypatch):
    for name in ("compile_point", "path_rows", "provenance"):
        monkeypatch.delattr(table1, name)
    assert run(monkeypatch, "--report", f"--out={recorded}") == 0
    made = {file.name: file.read_bytes() for file in recorded.iterdir()}
    assert {*made} == {"results.csv", "table.md", "index.html", "cost.png", "crossing.png"}
    text = made["table.md"].decode()
    assert "some device; 2030-01-02, revision abc1234" in text
    assert "| recurrent | O(n) | 8 steps | 4 |" in text
    assert f"| {table1_results.DILATED}, k = 3 | O(log_k n) | 3 layers | 1 |" in text
    assert made["index.html"].count(b"data:image/png") == 2


def test_plots_hold_every_kind_s_points(recorded):
    results = table1_results.Results(table1_results.read_rows(recorded / "results.csv"))
    over_n, over_d, memory, _ = table1_report.cost_figure(results).axes
    for axes, sizes in ((over_n, LENGTHS), (over_d, WIDTHS)):
        drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
        for kind in KINDS:
            assert drawn[kind][:, 0].tolist() == list(sizes)
    want = 5 + 3 * KINDS["recurrent"].flops(Sizes(2048, 256)) / 1e8
    assert drawn_last(over_n, "recurrent") == [2048, want]
    mebibytes = 4 * KINDS["recurrent"].flops(Sizes(2048, 256)) / 2**20
    assert drawn_last(memory, "recurrent") == [2048, mebibytes]


def drawn_last(axes, kind):
    return {line.get_label(): line.get_xydata() for line in axes.lines}[kind][-1].tolist()


# The command -----------------------------------------------------------------------------------


def test_a_small_run_measures_every_point_and_writes_the_report(monkeypatch, tmp_path, capsys):
    # A quarter of the compilations; fits are tested above.
    plan = table1.PLANS["small"]._replace(lengths=(64,), widths=(8,), path_lengths=(5,))
    monkeypatch.setitem(table1.PLANS, "small", plan)
    assert run(monkeypatch, "--scale=small", "--rounds=2", f"--out={tmp_path}") == 0
    rows = table1_results.read_rows(tmp_path / "results.csv")
    timed = [row for row in rows if row.forward_ms is not None]
    assert len(timed) == len(list(table1.points(plan)))
    assert all(row.forward_ms > 0 and row.forward_backward_ms > 0 for row in timed)
    assert {row.command for row in rows} == {
        "python -m experiments.table1_layer_cost --scale=small --rounds=2"
    }
    longest = {row.kind: row for row in rows if row.n == max(plan.path_lengths)}
    assert longest["self-attention"].layers_to_reach_all == 1
    assert longest["recurrent"].products_in_sequence == longest["recurrent"].n
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()


def test_a_dry_run_and_a_list_measure_and_write_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.delattr(table1, "compile_point")
    assert run(monkeypatch, "--dry_run", f"--out={tmp_path}") == 0
    text = capsys.readouterr().out
    flops = 4 * KINDS["self-attention"].flops(Sizes(2048, 512))
    assert f"| self-attention | 2,048 | 512 |  | {flops / 1e9:,.4f} |" in text
    assert run(monkeypatch, "--list", f"--out={tmp_path}") == 0
    assert "| restricted | O(r·n·d) | O(1) | O(n/r) |" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scale=large"], "--scale=large is not one of paper, small"),
        (["--rounds=0"], "--rounds=0"),
        (["--scale=small"], "give --out"),
        (["--report", "--out=nowhere"], "nowhere/results.csv: no such file"),
        (["--config.model.d_model=8"], "Unknown command line flag"),
    ],
)
def test_a_mistake_is_one_line(flags, message, monkeypatch, capsys):
    assert run(monkeypatch, *flags) == 2
    assert message in capsys.readouterr().err


def test_another_table_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    assert run(monkeypatch, "--report", f"--out={tmp_path}") == 2
    assert "is not what this experiment writes" in capsys.readouterr().err
