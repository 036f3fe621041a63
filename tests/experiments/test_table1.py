"""Table 1's layers against slow float64 references; their counts; the command at small scale."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import table1_layer_cost as table1
from experiments import table1_report
from experiments.layer_kinds import KINDS, Sizes, init, longest_chain, products_in_sequence, reach
from tests.fixtures.references import dot_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.training.cost import product_flops
from transformer_jax.use.command_line import exit_status

B, L, H, K = 2, 12, 3, 4
D = H * K
DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(B, L, D))


def float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def sizes_of(kind, n, d, k=3, r=5, heads=2):
    own = {name: {"k": k, "r": r}[name] for name in table1_report.WINDOWS.get(kind, "")}
    return Sizes(n, d, heads=heads, **own)


# The layers ------------------------------------------------------------------------------------


CUTS = [(11, 3), (12, 3), (10, 5), (7, 9), (3, 9), (4, 1)]  # whole blocks or not, or below one


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize(("n", "r"), [(11, None), *CUTS])
def test_attention_equals_equation_1_one_query_at_a_time(n, r, projected):
    x = query = key = value = X[:, :n]
    params = {}
    if projected:
        params = {name: DRAW.normal(size=(D, H, K)) / 2 for name in ("query", "key", "value")}
        query, key, value = (np.einsum("bld,dhk->blhk", x, weights) for weights in params.values())
        params["out"] = DRAW.normal(size=(H, K, D))
    query, key, value = (one.reshape(B, n, H, K) for one in (query, key, value))
    far = np.abs(np.subtract.outer(range(n), range(n)))
    weights = softmax_by_hand(dot_by_hand(query, key, K**-0.5), far <= ((r or 2 * n) - 1) / 2)
    want = values_by_hand(weights, value)
    if projected:
        want = np.einsum("blhk,hkd->bld", want, params["out"])
    kind = "self-attention" if projected else "self-attention alone"
    sizes = Sizes(n, D, r=r, heads=H)
    layer = jax.jit(lambda x: KINDS[kind].apply(float32(params), x, sizes))
    got, pull = jax.vjp(layer, float32(x))
    assert relative_error(got, want.reshape(x.shape)) < 1e-5
    assert np.isfinite(pull(got)[0]).all()  # in blocks, some queries see padding alone


def test_a_window_without_a_middle_is_refused():
    with pytest.raises(ValueError, match="4 has no middle"):
        KINDS["restricted alone"].apply((), float32(X), Sizes(L, D, r=4))


def test_an_lstm_equals_its_equations_one_position_at_a_time():
    params = tuple(DRAW.normal(size=shape) for shape in [(D, 4 * D), (D, 4 * D), 4 * D])
    from_input, recurrent, bias = params
    hidden = np.zeros((B, D))
    cell = np.zeros((B, D))
    want = np.zeros((B, L, D))
    for i in range(L):
        gates = X[:, i] @ from_input + hidden @ recurrent + bias
        enter, forget, leave = (1 / (1 + np.exp(-gates[:, g * D : g * D + D])) for g in (0, 1, 3))
        cell = forget * cell + enter * np.tanh(gates[:, 2 * D : 3 * D])
        want[:, i] = hidden = leave * np.tanh(cell)
    got = KINDS["recurrent"].apply(float32(params), float32(X), Sizes(L, D))
    assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_convolution_sums_the_places_around_a_position(dilation):
    kernel = DRAW.normal(size=(5, D, D))
    want = np.zeros((B, L, D))
    for b, i, w in np.ndindex(B, L, 5):
        place = i + (w - 2) * dilation
        if 0 <= place < L:
            want[b, i] += X[b, place] @ kernel[w]
    got = KINDS["convolution"].apply(*float32((kernel, X)), Sizes(L, D, k=5, dilation=dilation))
    assert relative_error(got, want) < 1e-6


# What is counted -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "convolution"])
@pytest.mark.parametrize(("n", "d", "r", "heads"), [(14, 12, 5, 3), (15, 8, 5, 2)])
def test_flops_by_closed_form_are_those_of_the_traced_products(kind, n, d, r, heads):
    sizes = sizes_of(kind, n, d, r=r, heads=heads)
    arguments = init(KINDS[kind], sizes), jnp.ones((2, n, d))

    def total(params, x_BLD):
        return (KINDS[kind].apply(params, x_BLD, sizes) ** 2).sum()

    want = 2 * KINDS[kind].flops(sizes)
    assert product_flops(total, *arguments) == want
    assert product_flops(jax.grad(total, argnums=(0, 1)), *arguments) == 3 * want


def test_a_convolution_takes_a_product_for_each_place_of_its_kernel():
    # XLA leaves out products with the padding: d² for 1 of the 3 places at either end.
    sizes = Sizes(7, 5, k=3)
    arguments = init(KINDS["convolution"], sizes), jnp.ones((1, 7, 5))
    layer = jax.jit(lambda *xs: KINDS["convolution"].apply(*xs, sizes))
    counted = layer.lower(*arguments).compile().cost_analysis()["flops"]
    assert KINDS["convolution"].flops(sizes) == counted + 2 * 2 * 5**2


def test_only_recurrence_has_operations_in_sequence_that_grow_with_the_length():
    chains = {
        kind: [products_in_sequence(KINDS[kind], sizes_of(kind, n, 8)) for n in (5, 9)]
        for kind in KINDS
    }
    assert chains == {
        "self-attention alone": [2, 2],
        "self-attention": [4, 4],
        "recurrent": [5, 9],
        "convolution": [1, 1],
        "restricted alone": [2, 2],
        "restricted": [4, 4],
    }


def test_a_chain_counts_what_waits_and_nothing_beside_it():
    x = jnp.ones((3, 3))
    assert longest_chain(lambda x: (x @ x) @ (x @ x) + x @ x, x) == 2
    assert longest_chain(lambda x: x + 1, x) == 0
    assert longest_chain(jax.jit(lambda x: jax.nn.softmax(x @ x) @ x), x) == 2

    def aside(carry, x):  # one product per step, which no other step needs
        return carry + 1, x @ x

    assert longest_chain(lambda x: jax.lax.scan(aside, 0.0, jnp.stack([x] * 6))[1], x) == 1


@pytest.mark.parametrize(
    ("kind", "k", "dilated", "want"),
    [
        ("self-attention", None, False, (12, 11, 1)),
        ("recurrent", None, False, (6, 11, None)),  # from the 7th of 12 to the last
        ("convolution", 3, False, (3, 1, 11)),
        ("convolution", 5, False, (5, 2, 6)),
        ("convolution", 3, True, (3, 1, 4)),  # 2^4 >= 12 > 2^3
        ("restricted", None, False, (5, 2, 6)),
    ],
)
def test_gradients_reach_as_far_as_the_layers_say(kind, k, dilated, want):
    assert reach(KINDS[kind], sizes_of(kind, 12, 4, k=k), dilated) == want


def test_memory_of_restricted_attention_grows_with_the_length_and_of_dense_with_its_square():
    growth = {}
    for kind in ("restricted alone", "self-attention alone"):
        sizes = [sizes_of(kind, n, 8, r=9, heads=1) for n in (288, 1152)]
        less, more = (table1.compile_point(kind, one, 1)[1] for one in sizes)
        growth[kind] = more / less
    assert growth["restricted alone"] < 5 < 12 < growth["self-attention alone"]


# Measuring -------------------------------------------------------------------------------------


def test_a_visit_is_the_median_of_its_calls_in_milliseconds(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 14.0, 20.0, 22.0, 30.0, 30.0])
    monkeypatch.setattr(table1.time, "perf_counter", lambda: next(clock))
    assert table1.visit(lambda: None, seconds=6.5) == 2000  # 1, 4 and 2 s; then the time is over


def test_points_are_visited_there_and_back(monkeypatch, tmp_path):
    visited = []
    runs = iter([(lambda: "a", lambda: "b"), (lambda: "c", lambda: "d")])

    def visit(run, seconds):
        visited.append(run())
        return float(len(visited))

    monkeypatch.setattr(table1, "visit", visit)
    monkeypatch.setattr(table1, "path_rows", lambda plan: [])
    monkeypatch.setattr(table1, "compile_point", lambda *_: (next(runs), 7))
    monkeypatch.setattr(table1, "KINDS", {"recurrent": KINDS["recurrent"]})
    table1.measure(table1.Plan((8, 9), (4,), batches=(2, 2)), 3, tmp_path, "a command")
    assert "".join(visited) == "abcdcdababcd"
    rows = table1_report.read_results(tmp_path / "results.csv").usual
    assert rows[["n", "memory_bytes"]].values.tolist() == [[8, 7], [9, 7]]
    assert rows.forward_ms.tolist() == [7, 5]  # medians of 1, 7, 9 and of 3, 5, 11
    assert rows.forward_flops[0] == 2 * KINDS["recurrent"].flops(Sizes(8, 4))


# Fits ------------------------------------------------------------------------------------------


def test_an_exponent_s_error_is_the_textbook_s():
    values = np.exp([0.0, 1.1, 1.9, 3.2])
    got, error = table1_report.exponents(np.exp(np.arange(4))[:, None], values)
    # Least squares by hand: mean of x 1.5, of y 1.55; Sxy = 5.2, Sxx = 5; slope 1.04.
    residuals = np.log(values) - 1.55 - 1.04 * (np.arange(4) - 1.5)
    assert got == pytest.approx([1.04])
    assert error == pytest.approx([np.sqrt((residuals**2).sum() / 2 / 5)])


@pytest.mark.parametrize(
    ("power", "factor", "want"), [(2, 1, 100), (2, 200, 0), (1.5, 1, np.inf), (1, 100, 0)]
)
def test_curves_cross_where_their_power_laws_do(power, factor, want):
    n = pd.Series([16, 64, 256], index=[16, 64, 256])
    assert table1_report.crossing(factor * n**power, 100.0 * n) == pytest.approx(want)


# The report ------------------------------------------------------------------------------------


RECORDED = Path(__file__).parents[2] / table1.RECORDED


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["table1_layer_cost", *flags])
    return exit_status(table1.main)


def test_the_report_is_made_from_the_recorded_rows_alone(monkeypatch, tmp_path):
    (tmp_path / "results.csv").write_bytes((RECORDED / "results.csv").read_bytes())
    for name in ("compile_point", "path_rows", "revision"):
        monkeypatch.delattr(table1, name)
    assert run(monkeypatch, "--report", f"--out={tmp_path}") == 0
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {*made} == {"results.csv", "table.md", "index.html", "cost.png", "crossing.png"}
    assert made["table.md"] == (RECORDED / "table.md").read_bytes()
    assert made["index.html"].count(b"data:image/png") == 2


def test_laws_of_counted_flops_and_their_crossings_are_those_of_the_closed_forms():
    results = table1_report.read_results(RECORDED / "results.csv")
    laws = {kind: table1_report.law(results, kind, "forward_flops", False) for kind in KINDS}
    assert laws["self-attention alone"] == "n^2.00 d^1.00"
    assert laws["recurrent"] == "n^1.00 d^2.00"
    assert laws["convolution"] == "k^1.00 n^1.00 d^2.00"
    table = table1_report.crossing_table(results)
    by_name = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [row["FLOPs, alone"] for row in by_name] == ["256", "512", "1,024", "2,048"]  # 4 d
    assert [row["FLOPs, layer"] for row in by_name] == ["128", "256", "512", "1,024"]


def test_plots_hold_every_kind_s_points():
    results = table1_report.read_results(RECORDED / "results.csv")
    drawn = [
        {line.get_label(): line.get_xydata() for line in axes.lines}
        for axes in table1_report.cost_figure(results).axes
    ]
    plan = table1.PLANS["paper"]
    for kind in KINDS:
        assert drawn[0][kind][:, 0].tolist() == list(plan.lengths)
        assert drawn[1][kind][:, 0].tolist() == list(plan.widths)
    [row] = results.usual.query("kind == 'recurrent' and n == 2048 and d == 256").itertuples()
    assert drawn[0]["recurrent"][-1].tolist() == [2048, row.forward_backward_ms]
    assert drawn[2]["recurrent"][-1].tolist() == [2048, row.memory_bytes / 2**20]  # MiB


# The command -----------------------------------------------------------------------------------


@pytest.mark.slow("measures every layer")
def test_a_small_run_measures_every_point_and_writes_the_report(monkeypatch, tmp_path, capsys):
    # A quarter of the compilations; fits are tested above.
    plan = table1.PLANS["small"]._replace(lengths=(64,), widths=(8,), path_lengths=(5,))
    monkeypatch.setitem(table1.PLANS, "small", plan)
    assert run(monkeypatch, "--scale=small", "--rounds=2", f"--out={tmp_path}") == 0
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()
    rows = pd.read_csv(tmp_path / "results.csv")
    timed = rows[rows.forward_ms > 0]
    points = [(kind, s.n, s.d, s.k or s.r or 0) for kind, s in plan.points()]
    window = timed.k.fillna(timed.r).fillna(0)
    assert [*zip(timed.kind, timed.n, timed.d, window, strict=True)] == points
    assert (timed.forward_backward_ms > 0).all()
    assert set(rows.command) == {"python -m experiments.table1_layer_cost --scale=small --rounds=2"}
    paths = rows[rows.forward_ms.isna()].set_index("kind")
    assert list(paths.index) == table1_report.PATHS
    assert paths.layers_to_reach_all["self-attention"] == 1
    assert paths.products_in_sequence["recurrent"] == 5


HEAD = ",".join(table1_report.COLUMNS)


@pytest.mark.parametrize(
    ("flags", "content", "message"),
    [
        (["--scale=large"], "", "--scale=large is not one of paper, small"),
        (["--rounds=0"], "", "--rounds=0"),
        (["--scale=small"], "", "give --out"),
        (["--report", "--out=nowhere"], "", "nowhere/results.csv: no such file. Measure first"),
        (["--config.model.d_model=8"], "", "Unknown command line flag"),
        (["--report", "--out=."], "a,b\n1,2\n", "results.csv, line 1: its columns are not kind, n"),
        (["--report", "--out=."], f"{HEAD}\nrecurrent,x{',' * 16}\n", "results.csv, column n"),
        (["--report", "--out=."], f"{HEAD}\n" + 2 * f"recurrent,1{',' * 16}\n", "n=1 twice"),
        (["--report", "--out=."], f"{HEAD}\n", "results.csv: what it says cannot be reported"),
    ],
)
def test_a_mistake_is_one_line(flags, content, message, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.csv").write_text(content)
    assert run(monkeypatch, *flags) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
