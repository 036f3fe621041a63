"""The figures hold what was measured, under readable labels, and become PNG files."""

import math
import struct
import warnings

import numpy as np
import pytest
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font

from tests.fixtures.cases import first_quick
from transformer_jax.errors import RunError
from transformer_jax.reporting import plots
from transformer_jax.reporting.plots import attention_figure, curves_figure, save_figure

METRICS = [
    {"step": 100, "kind": "train", "nats_per_token": 5.0, "perplexity": 150.0, "grad_norm": 2.0},
    {"step": 200, "kind": "train", "nats_per_token": 4.0, "perplexity": 55.0, "grad_norm": 1.0},
    {"step": 200, "kind": "valid", "nats_per_token": 4.5, "perplexity": 90.0, "bleu": 3.5},
    {"step": 300, "kind": "train", "nats_per_token": 3.0, "perplexity": 20.0, "grad_norm": 0.5},
]


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def panels(figure):
    return {axes.get_ylabel(): axes for axes in figure.axes}


def drawn(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_each_panel_holds_the_numbers_that_were_given_by_kind():
    by_label = panels(curves_figure(METRICS))
    assert drawn(by_label["loss (nats per subword)"]) == {
        "train": [[100, 5.0], [200, 4.0], [300, 3.0]],
        "valid": [[200, 4.5]],
    }
    assert drawn(by_label["BLEU (0 to 100)"]) == {"valid": [[200, 3.5]]}
    assert drawn(by_label["gradient norm"]) == {"train": [[100, 2.0], [200, 1.0], [300, 0.5]]}
    assert {axes.get_xlabel() for axes in by_label.values()} == {"step"}


def test_runs_share_panels_and_each_has_a_color_and_a_line_per_kind_of_its_own():
    slower = [{**record, "step": 2 * record["step"]} for record in METRICS]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.runs_figure({"a$b$": METRICS, "_slow": slower})
    axes = panels(figure)["loss (nats per subword)"]
    assert drawn(axes) == {
        "a$b$, train": [[100, 5.0], [200, 4.0], [300, 3.0]],
        "a$b$, valid": [[200, 4.5]],
        "_slow, train": [[200, 5.0], [400, 4.0], [600, 3.0]],
        "_slow, valid": [[400, 4.5]],
    }
    colors = [line.get_color() for line in axes.lines]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    (legend,) = figure.legends
    texts = [text.get_text().strip() for text in legend.get_texts()]
    assert sorted(texts) == sorted(drawn(axes))
    many = plots.runs_figure({str(n): METRICS[:2] for n in range(9)})
    lines = [(line.get_color(), line.get_linestyle()) for line in many.axes[0].lines]
    assert len(set(lines)) == 9
    (legend,) = plots.runs_figure({"n" * 40: METRICS[:2], "m" * 40: METRICS[:2]}).legends
    assert legend._ncols == 2, "longer names would not fit side by side"
    (legend,) = plots.runs_figure({"n" * 60: METRICS[:2], "m" * 60: METRICS[:2]}).legends
    assert legend._ncols == 1


def test_every_metric_of_a_run_has_a_panel_and_a_unit():
    names = ["nats_per_token", "perplexity", "token_accuracy", "bleu", "learning_rate"]
    names += ["grad_norm", "target_tokens_per_second", "padding_share"]
    record = {"step": 1, "kind": "train"} | dict.fromkeys(names, 0.5)
    assert "; ".join(panels(curves_figure([record]))) == (
        "loss (nats per subword); perplexity (per subword); token accuracy (share); "
        "BLEU (0 to 100); learning rate; gradient norm; target tokens per second; "
        "padding (share of positions)"
    )


def test_what_spans_decades_has_a_log_axis():
    scales = {label: axes.get_yscale() for label, axes in panels(curves_figure(METRICS)).items()}
    log = [label for label, scale in scales.items() if scale == "log"]
    assert log == ["perplexity (per subword)", "gradient norm"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1.05, 1.3], [1.05, 1.1, 1.15, 1.2, 1.25, 1.3]),
        ([11, 105], [10, 20, 50, 100]),
        ([13, 105], [15, 20, 30, 40, 60, 100]),
        ([2, 300], [2, 5, 10, 20, 50, 100, 200]),
        ([0.2, 3_000], [1, 10, 100, 1_000]),
    ],
)
def test_a_log_axis_is_labeled_whatever_its_range(values, ticks):
    records = [{"step": n, "kind": "train", "perplexity": v} for n, v in enumerate(values)]
    axes = curves_figure(records).axes[0]
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown == pytest.approx(ticks)
    assert len(axes.yaxis.get_minorticklocs()) == 0


def test_a_loss_that_falls_from_6_to_below_1_has_a_log_axis():
    def scale(*losses: float) -> str:
        records = [{"step": n, "kind": "train", "nats_per_token": x} for n, x in enumerate(losses)]
        return curves_figure(records).axes[0].get_yscale()

    assert scale(6.0, 0.5, 0.1) == scale(6.0, math.nan, 0.1) == "log"
    assert scale(6.0, 3.0) == scale(0.9, 0.4) == scale(6.0, 0.0) == scale(math.nan) == "linear"


def test_curves_have_the_title_that_is_given():
    titles = [curves_figure(METRICS, *title).legends[0].get_title() for title in ((), ("$x$\n",))]
    assert [title.get_text() for title in titles] == ["", "$x$\\n"]
    assert not titles[1].get_parse_math()


def test_a_single_point_can_be_seen():
    (line,) = curves_figure(METRICS[:1]).axes[0].lines
    assert line.get_marker() == "o"


def test_a_diverged_run_is_drawn_with_gaps(tmp_path):
    bad = {"step": 400, "kind": "train", "nats_per_token": math.nan, "perplexity": math.inf}
    gone = {"step": 400, "kind": "train", "grad_norm": math.nan}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = save_figure(curves_figure([*METRICS, bad]), tmp_path / "plots" / "curves.png")
        save_figure(curves_figure([gone]), tmp_path / "gone.png")
    assert path == tmp_path / "plots" / "curves.png"
    assert png_size(path) == (1500, 810)  # two columns of 5 inches, two rows, at 150 dots
    line = curves_figure([*METRICS, bad]).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), [5.0, 4.0, 3.0, math.nan])


def test_nothing_to_plot_is_a_users_error():
    with pytest.raises(RunError, match="none of nats_per_token"):
        curves_figure([{"step": 1, "kind": "train", "epochs": 1.0}])


def attention(heads, tgt, src):
    weights = np.random.default_rng(0).random((heads, tgt, src)).astype(np.float32)
    return weights / weights.sum(-1, keepdims=True)


def tick_labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_each_head_is_a_map_of_its_own_weights_on_one_scale():
    weights = attention(3, 2, 4)
    figure = attention_figure(weights, ["a", "b", "c", "d"], ["x", "y"], "layer 1")
    *heads, bar = figure.axes
    assert [axes.get_title() for axes in heads] == ["head 1", "head 2", "head 3"]
    for axes, map_LM in zip(heads, weights, strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), map_LM)
        assert image.get_clim() == (0.0, weights.max())
    assert figure.get_suptitle() == "layer 1"
    assert bar.get_ylabel() == "attention weight"
    assert tick_labels(heads[0].yaxis) == ["x", "y"]
    assert tick_labels(heads[0].xaxis) == ["a", "b", "c", "d"]


def test_negative_weights_have_a_color_of_their_own():
    weights = attention(2, 2, 3)
    weights[1, 0, 0] = -2.0
    heads = attention_figure(weights, ["a", "b", "c"], ["x", "y"], "layer 1").axes[:2]
    (image,) = heads[0].images
    assert image.get_clim() == (-2.0, 2.0)
    assert image.get_cmap().name == "RdBu"


def test_pieces_are_at_the_left_and_below_the_lowest_map_of_a_column():
    figure = attention_figure(attention(6, 1, 2), ["a", "b"], ["x"], "six heads, four columns")
    heads = figure.axes[:6]
    assert [tick_labels(axes.yaxis)[0] for axes in heads] == ["x", "", "", "", "x", ""]
    assert [tick_labels(axes.xaxis)[0] for axes in heads] == ["", "", "a", "a", "a", "a"]


@pytest.mark.parametrize(("length", "heads"), first_quick([(60, 2), (128, 2)], 1))
def test_every_label_of_a_long_sentence_is_drawn_and_none_overlap(length, heads):
    pieces = [f"▁piece{i}" for i in range(length)]
    figure = attention_figure(attention(heads, length, length), pieces, pieces, "long")
    figure.draw_without_rendering()
    *maps, bar = figure.axes
    for axis, extent in ((maps[0].yaxis, "y"), (maps[0].xaxis, "x"), (maps[-1].xaxis, "x")):
        assert tick_labels(axis) == pieces
        extents = [label.get_window_extent() for label in axis.get_ticklabels()]
        boxes = sorted(getattr(box, f"interval{extent}").tolist() for box in extents)
        assert all(before[1] <= after[0] for before, after in zip(boxes, boxes[1:], strict=False))
    # One map is below the other, with its own labels, and the color bar is beside the first.
    assert maps[0].get_subplotspec().get_gridspec().ncols == 1
    assert {axes.get_xlabel() for axes in maps} == {"attended to"}
    assert bar.get_position().y0 > maps[1].get_position().y1


def test_a_figure_of_a_very_long_sentence_has_a_limit():
    pieces = [f"▁{i}" for i in range(900)]
    figure = attention_figure(attention(2, 900, 900), pieces, pieces, "")
    width, height = figure.get_size_inches()
    assert width * height < 1.2 * plots.MOST_AREA and height < 1.1 * plots.MOST_HEIGHT
    axis = figure.axes[0].yaxis
    labels = tick_labels(axis)
    assert labels == [f"▁{tick:.0f}" for tick in axis.get_ticklocs()]
    assert 100 < len(labels) < 900


@pytest.mark.parametrize(
    ("length", "side_by_side"), first_quick([(18, 4), (19, 2), (38, 2), (39, 1), (77, 1)], 2)
)
def test_a_sentence_keeps_every_label_and_its_figure_fits_a_page(length, side_by_side):
    pieces = [f"▁{i}" for i in range(length)]
    figure = attention_figure(attention(8, length, length), pieces, pieces, "")
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == side_by_side
    assert tick_labels(figure.axes[0].yaxis) == tick_labels(figure.axes[7].xaxis) == pieces
    assert figure.get_size_inches()[0] < 12


def test_a_piece_as_long_as_a_line_is_cut():
    figure = attention_figure(attention(1, 1, 2), ["a" * 500, "b"], ["x"], "")
    assert tick_labels(figure.axes[0].xaxis) == ["a" * 20, "b"]


def test_bytes_are_labeled_with_the_characters_that_they_form():
    def pieces(text: bytes) -> list[str]:
        return [f"<0x{byte:02X}>" for byte in text]

    whole = pieces("a×€😀\n".encode())
    assert plots.readable(whole) == ["a", "×", "⋯", "€", "⋯", "⋯", "😀", "⋯", "⋯", "⋯", "\n"]
    assert plots.readable(["▁x", *pieces("×".encode()), "y"]) == ["▁x", "×", "⋯", "y"]
    # Neither the beginning of a character, nor its rest, nor other pieces become one.
    broken = ["<0xE2>", "<0x82>", "x", "<0xAC>", "<0xD7>", "<s>", "<0xd7>", "<0x4>"]
    assert plots.readable(broken) == broken
    assert plots.readable(["<0xD7>", *pieces(b"b")]) == ["<0xD7>", "b"]
    figure = attention_figure(attention(1, 1, 2), pieces("×".encode()), ["x"], "")
    assert tick_labels(figure.axes[0].xaxis) == ["×", "⋯"]


@pytest.mark.parametrize(("suffix", "magic"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pictures_for_papers_are_the_same_file_each_time(suffix, magic, tmp_path):
    def saved(name: str) -> bytes:
        figure = attention_figure(attention(1, 1, 2), ["a", "😀"], ["x"], "one")
        return plots.save_figure(figure, tmp_path / f"{name}.{suffix}").read_bytes()

    first, second = saved("first"), saved("second")
    assert first.startswith(magic) and first == second
    # Fonts of type 42 keep text as text; type 3 fonts are refused by some conferences.
    assert b"/Type3" not in first


def test_any_unicode_is_drawn(tmp_path):
    src = ["▁你好", "😀", "$x", "$\\frac$", "\\frac{", "%", "שלום"]
    tgt = ["\n", "\ud800", "\0", "e\u0301", "_^", "<0x0A>", "\u202e"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = attention_figure(attention(1, 7, 7), src, tgt, "$\\frac$ \ud800\n")
        path = plots.save_figure(figure, tmp_path / "a.png")
    width, height = png_size(path)
    assert 400 < width < 1000
    assert 400 < height < 1000
    axes = attention_figure(attention(1, 7, 7), src, tgt, "").axes[0]
    assert tick_labels(axes.xaxis) == src
    assert tick_labels(axes.yaxis)[:3] == ["\\n", "\\ud800", "\\x00"]


def test_characters_that_the_usual_font_lacks_are_drawn_in_one_that_has_them(caplog):
    usual = plots.font_families("a ü")
    assert usual == ["DejaVu Sans"] and plots.font_families("a \u1d81")[0] == usual[0]
    other = plots.font_families("a \u1d81")[1]  # of STIX, which matplotlib brings along
    assert 0x1D81 in FT2Font(findfont(other)).get_charmap()
    figure = attention_figure(attention(1, 1, 2), ["\u1d81", "b"], ["x"], "")
    assert figure.axes[0].get_xticklabels()[0].get_fontfamily() == [*usual, other]
    assert caplog.text == ""
    plots.font_families("\U000f1234")
    assert "no installed font has" in caplog.text


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected \[heads, 2 target pieces, 3 source pieces\]"):
        attention_figure(attention(1, 3, 2), ["a", "b", "c"], ["x", "y"], "")
