"""Handwritten digits in a grid, read as words: does attention point at the digit that it names?

    pip install scikit-learn; python -m experiments.digit_grids --scale=small

The questions: does the model read a picture of several things in order; does its encoder-decoder
attention look at the digit that it writes, whose place is known (Xu et al. 2015); and does it need
to know where a patch is?

A picture is 3 x 3 digits of scikit-learn's 1,797 (8 x 8 pixels each), its text their names, row by
row: "one nine four zero ...". Training has 6,000 pictures made of the first 1,400 digits, the test
300 of the others; validation has other pictures of the first 1,400, so that its perplexity does not
tell how new digits are read. The rows are a model of 2 + 2 layers, d_model 128, patches of 4 x 4
pixels, 800 updates: with sinusoids, with learned positions, and without any. The last one is the
control: it cannot know the order, and must fail.

A picture counts as read if all nine words are right. Attention points at a digit if, where it is
written, most of the weight of the last layer (the mean of its heads) is on that digit's four
patches; by chance that is one in nine.

The rules, written before the runs; all are over seeds, by Student's t, p < 0.05. "It reads the
grid" holds for a row if more than 90 % of the words are right, and does not if fewer. "Attention
points" holds if it points at more than 80 % of the digits, and does not if fewer. The whole is not
decided if the control reads the grid.
"""

import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.evidence import Evidence, of_jobs
from experiments.judging import HOLDS, OPEN, Column, Rule, at, means, verdicts
from experiments.short_demo import on_text, updates, write_split
from experiments.speech import WORDS, weights_of_words
from transformer_jax.evaluation.attention import Attention
from transformer_jax.reporting.page import Heading, Part, Picture, Table
from transformer_jax.reporting.plots import save_figure
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

TEXT = Path("runs", "digit_grids", "text")
SIZES = {"train": 6_000, "valid": 200, "test": 300}
TRAIN_DIGITS = 1_400  # of 1,797
SIDE, PIXELS, PATCH = 3, 8, 4  # digits of a row, pixels of a digit, pixels of a patch
LOOKED_AT = 100  # pictures whose attention is read
CONTROL = "none"
ROWS: dict[str, Overrides] = {
    "sinusoidal": {},
    "learned": {"model.positions": "learned", "model.max_positions": 200},
    CONTROL: {"model.positions": "none"},
}
MOST, POINTED = 0.9, 0.8


# Pictures ------------------------------------------------------------------------------------


def grids(split: str, labels: Sequence[int]) -> list[list[int]]:
    """The numbers of the digits of each picture of a split, row by row."""
    draw = random.Random(split)
    numbers = range(TRAIN_DIGITS, len(labels)) if split == "test" else range(TRAIN_DIGITS)
    return [draw.choices(numbers, k=SIDE * SIDE) for _ in range(SIZES[split])]


def grid_of(images: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """A picture, black on white: uint8 `[24, 24]`. Each image is from 0 to 16 `[8, 8]`."""
    tiles = images[list(numbers)].reshape(SIDE, SIDE, PIXELS, PIXELS).swapaxes(1, 2)
    ink = tiles.reshape(SIDE * PIXELS, SIDE * PIXELS)
    return (255 - 255 * ink / 16).astype(np.uint8)


def text_of(labels: Sequence[int], numbers: Sequence[int]) -> str:
    """The words of a picture."""
    return " ".join(WORDS[labels[number]] for number in numbers)


def digits() -> tuple[np.ndarray, list[int]]:
    """scikit-learn's digits: images `[1797, 8, 8]` and what they show."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images, found.target.tolist()


def prepare() -> None:
    """Writes the text, unless it is there."""
    if not (TEXT / "test.words").exists():
        write_text(TEXT, *digits())


def write_text(folder: Path, images: np.ndarray, labels: Sequence[int]) -> None:
    """Writes STEM.files and STEM.words, and the pictures that STEM.files names."""
    for stem in SIZES:
        (folder / stem).mkdir(parents=True, exist_ok=True)
        names, texts = [], []
        for number, own in enumerate(grids(stem, labels)):
            names.append(f"{stem}/{number}.png")
            Image.fromarray(grid_of(images, own)).save(folder / names[-1])
            texts.append(text_of(labels, own))
        write_split(folder, stem, {"files": names, "words": texts})


# Measurement ---------------------------------------------------------------------------------


def share_on_cells(cross: Attention) -> np.ndarray:
    """How much of each word's weight is on its own digit: float32 `[9]`."""
    weights_WM = weights_of_words(cross)[: SIDE * SIDE]
    across = SIDE * PIXELS // PATCH
    down, along = np.divmod(np.arange(across**2), across)
    cell_M = down * PATCH // PIXELS * SIDE + along * PATCH // PIXELS
    return np.array([weights[cell_M == n].sum() for n, weights in enumerate(weights_WM)])


def read_by(job: Job) -> Evidence:
    """Shares of right pictures and words, and how often attention points at the digit."""
    from transformer_jax.api import load

    run = load(job.folder)
    files = [str(TEXT / "test" / f"{n}.png") for n in range(SIZES["test"])]
    wanted = (TEXT / "test.words").read_text(encoding="utf-8").splitlines()
    found = run.translate(files)
    words = [
        one == other
        for text, own in zip(found, wanted, strict=True)
        for one, other in zip([*text.split(), *[""] * 9], own.split(), strict=False)
    ]
    shares = [
        share_on_cells(run.attention(file, text).kinds["cross"])
        for file, text in zip(files[:LOOKED_AT], wanted, strict=False)
    ]
    return {
        "pictures": statistics.fmean(one == own for one, own in zip(found, wanted, strict=True)),
        "words": statistics.fmean(words),
        "points": float(np.mean(np.concatenate(shares) > 0.5)),
    }


def drawn_attention(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """What is looked at where the first words of a picture are written, drawn on the picture."""
    path = folder / "cells.png"
    job = jobs[0]
    if not path.exists() and job.folder.exists():
        import matplotlib.pyplot as plt

        from transformer_jax.api import load

        file = TEXT / "test" / "0.png"
        text = (TEXT / "test.words").read_text(encoding="utf-8").splitlines()[0]
        cross = load(job.folder).attention(str(file), text).kinds["cross"]
        figure, axes = plt.subplots(1, SIDE * SIDE, figsize=(9, 1.1))
        for axis, weights_M, word in zip(axes, weights_of_words(cross), text.split(), strict=True):
            weights = weights_M.reshape(SIDE * PIXELS // PATCH, -1)
            extent = (0, SIDE * PIXELS, SIDE * PIXELS, 0)
            axis.imshow(Image.open(file), cmap="gray", extent=extent)
            axis.imshow(weights, cmap="Reds", alpha=0.6, extent=extent)
            axis.set_title(word, fontsize=9)
            axis.axis("off")
        save_figure(figure, path)
    about = "What the model looks at where it writes each word (sinusoids, the first seed)."
    return [Picture(path, about)] if path.exists() else []


# Verdicts ------------------------------------------------------------------------------------

RULES = [
    Rule("it reads the grid", at("words"), 1, MOST),
    Rule("attention points", at("points"), 1, POINTED),
]
COLUMNS = [
    Column("words right, %", lambda x: 100 * x["words"], ".1f"),
    Column("whole pictures right, %", lambda x: 100 * x["pictures"], ".1f"),
    Column("attention points at the digit, %", lambda x: 100 * x["points"], ".1f"),
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, what was measured of every row, and a picture with its attention."""
    found = of_jobs(folder, jobs, read_by)
    table = verdicts(RULES, found, ROWS)
    if RULES[0].verdict(found, CONTROL) == HOLDS:
        table = Table(table.head, [[row, OPEN, OPEN] for row in ROWS])
    title = "What was read, and where attention was"
    measured = means(COLUMNS, found, ROWS)
    return [Heading("Verdicts"), table, Heading(title), measured, *drawn_attention(folder, jobs)]


SMALL = on_text(
    TEXT,
    {
        "data.src": "files",
        "data.tgt": "words",
        "data.src_kind": "pictures",
        "data.patch_height": PATCH,
        "data.patch_width": PATCH,
        "vocabulary.size": 315,  # every word is a subword
        "model.features": PATCH * PATCH,
        "model.dropout": 0.1,
        **updates(800, every=400),
        "train.tokens_per_batch": 300,
        "train.row_length": 50,
        "decode.beam_size": 1,
    },
)
EXPERIMENT = Experiment(
    "digit_grids",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=findings,
    metrics=("perplexity",),
    fixed=("data",),
    prepare=prepare,
)

if __name__ == "__main__":
    main(EXPERIMENT)
