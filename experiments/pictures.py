"""Text drawn as a picture, read and translated: what look-alike letters do to it and to subwords.

    python -m experiments.pictures --scale=small

The question: a model that sees its source drawn with a font has no vocabulary to break (Salesky et
al. 2021). What does it pay for that, and how much does it keep where letters are replaced by others
that look alike, where letters are swapped, where pixels are noisy, or where the font is larger?

The text is 20,000 pairs of the built-in corpus, English to German. All rows are a model of 2 + 2
layers, d_model 128, 1,500 updates; one reads subwords, the others pictures of the same lines, in
gray, cut into patches of 16 x 8 pixels: DejaVu Sans of 12 pixels, whose letters lie anywhere, and
DejaVu Sans Mono with each letter in a patch of its own. The test is 300 lines, changed in four
ways, with a beam of 1. Look-alikes: every third letter of those that Cyrillic has too is the
Cyrillic one. Swapped: in every third word of four letters or more the second and the third. Noise:
each pixel gets normal noise of 0.2 (black to white is 2). Larger: 13 pixels.

The rules, written before the runs (a row with a letter in each patch was added after the first,
which did not learn to read); all are over seeds, by Student's t, p < 0.05. "It reads pictures"
holds for a row if it has more than 90 % of the BLEU of the row subwords, and does not if less.
"Look-alikes change nothing" holds if it loses less than 1 BLEU to them while the row subwords loses
more than half, and does not if one of them is not so. "It bears swaps better" holds if it loses a
smaller share of its BLEU than subwords, and does not if more. Only a row that reads can show the
others.
"""

import functools
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from experiments.evidence import Evidence, Found, of_jobs
from experiments.judging import FAILS, OPEN, Column, judged, means, side_by_side
from experiments.short_demo import on_text, updates, write_split
from experiments.translations import bleu
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.built_in_corpus import built_in_pairs

TEXT = Path("runs", "pictures", "text")
SIZES = {"train": 20_000, "valid": 500, "test": 300}
HEIGHT, WIDTH = 16, 8  # of a patch, pixels; a picture is as high
FONT, LARGER = 12, 13  # pixels
NOISE = 25.5  # of 255
EVERY = 3  # letters, or words, from one that is changed to the next
CYRILLIC = dict(zip("aceopxyiABCEHMOPTX", "асеорхуіАВСЕНМОРТХ", strict=True))
SUBWORDS, PICTURES, CELLS = "subwords", "pictures", "a letter a patch"
OF_PICTURES: Overrides = {
    "data.src_kind": "pictures",
    "data.patch_height": HEIGHT,
    "data.patch_width": WIDTH,
    "model.features": HEIGHT * WIDTH,
    "data.max_length": 96,
}
ROWS: dict[str, Overrides] = {
    SUBWORDS: {"data.src": "en"},
    PICTURES: {"data.src": "files", **OF_PICTURES},
    CELLS: {"data.src": "cells", **OF_PICTURES},
}
CLEAN, ALIKE, SWAPPED, NOISY, LARGE = "clean", "look-alikes", "swapped", "noise", "larger"


# Pictures ------------------------------------------------------------------------------------


@functools.cache
def font(size: int, name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    """A font that comes with matplotlib."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return ImageFont.truetype(str(folder / f"{name}.ttf"), size)


def drawn(line: str, size: int = FONT) -> np.ndarray:
    """A line in black on white: uint8 `[HEIGHT, width]`."""
    picture = Image.new("L", (max(1, round(font(size).getlength(line))), HEIGHT), 255)
    # The baseline is where it is for every line, whatever letters it has.
    ImageDraw.Draw(picture).text((0, HEIGHT - 4), line, font=font(size), anchor="ls")
    return np.asarray(picture)


def in_cells(line: str, size: int = FONT) -> np.ndarray:
    """A line with each letter in a patch of its own: uint8 `[HEIGHT, WIDTH letters]`."""
    picture = Image.new("L", (max(1, WIDTH * len(line)), HEIGHT), 255)
    for n, letter in enumerate(line):
        place = WIDTH * n + WIDTH // 2, HEIGHT - 4
        own = font(size, "DejaVuSansMono")
        ImageDraw.Draw(picture).text(place, letter, font=own, anchor="ms")
    return np.asarray(picture)


DRAW: dict[str, Callable[..., np.ndarray]] = {PICTURES: drawn, CELLS: in_cells}


def noisy(pixels: np.ndarray, seed: int) -> np.ndarray:
    """The picture with normal noise."""
    noise = np.random.default_rng(seed).normal(0, NOISE, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def look_alike(line: str) -> str:
    """The line with every third letter that Cyrillic has too replaced by that one."""
    counted = 0
    found = []
    for letter in line:
        counted += letter in CYRILLIC
        found.append(CYRILLIC[letter] if letter in CYRILLIC and counted % EVERY == 0 else letter)
    return "".join(found)


def swapped(line: str) -> str:
    """The line with two letters swapped in every third word that has four."""
    counted = 0
    found = []
    for word in line.split(" "):
        counted += len(word) >= 4
        if len(word) >= 4 and counted % EVERY == 0:
            word = word[0] + word[2] + word[1] + word[3:]
        found.append(word)
    return " ".join(found)


CHANGES: dict[str, Callable[[str], str]] = {
    CLEAN: lambda line: line,
    ALIKE: look_alike,
    SWAPPED: swapped,
}
# From a function of DRAW, a line and the number of the line to its picture.
WAYS: dict[str, Callable[[Callable[..., np.ndarray], str, int], np.ndarray]] = {
    CLEAN: lambda draw, line, number: draw(line),
    ALIKE: lambda draw, line, number: draw(look_alike(line)),
    SWAPPED: lambda draw, line, number: draw(swapped(line)),
    NOISY: lambda draw, line, number: noisy(draw(line), number),
    LARGE: lambda draw, line, number: draw(line, LARGER),
}


def prepare() -> None:
    """Writes the text, unless it is there."""
    if not (TEXT / "test.cells").exists():
        write_text(TEXT)


def write_text(folder: Path) -> None:
    """Writes STEM.en and STEM.de, pictures, and STEM.files and STEM.cells, which name them."""
    for stem, count in SIZES.items():
        pairs = built_in_pairs(stem, count)
        lines: dict[str, list[object]] = {
            "en": [pair.src for pair in pairs],
            "de": [pair.tgt for pair in pairs],
        }
        for row, draw in DRAW.items():
            for way in WAYS if stem == "test" else (CLEAN,):
                file_of(folder, row, stem, way, 0).parent.mkdir(parents=True, exist_ok=True)
                for number, pair in enumerate(pairs):
                    picture = Image.fromarray(WAYS[way](draw, pair.src, number))
                    picture.save(file_of(folder, row, stem, way, number))
            files = [file_of(folder, row, stem, CLEAN, n) for n in range(count)]
            suffix = str(ROWS[row]["data.src"])
            lines[suffix] = [file.relative_to(folder) for file in files]
        write_split(folder, stem, lines)


def file_of(folder: Path, row: str, stem: str, way: str, number: int) -> Path:
    """The picture of a line for a row of DRAW."""
    own = folder / "cells" if row == CELLS else folder
    return own / stem / way / f"{number}.png"


# Measurement ---------------------------------------------------------------------------------


def bleu_of(job: Job) -> Evidence:
    """BLEU of the test, changed in each way that the row can read."""
    from transformer_jax.api import load

    run = load(job.folder)
    pairs = built_in_pairs("test", SIZES["test"])
    references = [pair.tgt for pair in pairs]
    found: Evidence = {}
    for way in WAYS:
        if job.row in DRAW:
            lines = [str(file_of(TEXT, job.row, "test", way, n)) for n in range(len(pairs))]
        elif way in CHANGES:
            lines = [CHANGES[way](pair.src) for pair in pairs]
        else:
            continue
        found[way] = bleu(run.translate(lines), references)
    return found


# Verdicts ------------------------------------------------------------------------------------

CLAIMS = ("it reads pictures", "look-alikes change nothing", "it bears swaps better")
MOST, LITTLE, HALF = 0.9, 1.0, 0.5


def verdicts_on(found: Found, row: str) -> list[str]:
    """The verdicts on a row of DRAW, in the order of CLAIMS."""
    both = side_by_side(found, row, SUBWORDS)
    keeps = judged([one[CLEAN] - one[ALIKE] for one, _ in both], LITTLE, -1)
    breaks = judged([1 - other[ALIKE] / other[CLEAN] for _, other in both], HALF, 1)
    alike = keeps if keeps == breaks else FAILS if FAILS in (keeps, breaks) else OPEN
    swaps = judged([_kept(one) - _kept(other) for one, other in both], 0, 1)
    reads = judged([one[CLEAN] / other[CLEAN] for one, other in both], MOST, 1)
    return [reads, *((OPEN, OPEN) if reads in (FAILS, OPEN) else (alike, swaps))]


def _kept(found: Evidence) -> float:
    return found[SWAPPED] / found[CLEAN]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and the BLEU of all rows in each way."""
    found = of_jobs(folder, jobs, bleu_of)
    columns = [Column(way, methodcaller("get", way), ".1f") for way in WAYS]
    return [
        Heading("Verdicts"),
        Table(["row", *CLAIMS], [[row, *verdicts_on(found, row)] for row in DRAW]),
        Heading("BLEU, by what was done to the source"),
        means(columns, found, ROWS),
    ]


SMALL = on_text(
    TEXT,
    {
        "data.tgt": "de",
        "model.dropout": 0.1,
        **updates(1_500, every=500),
        "decode.beam_size": 1,
        "decode.max_length": 96,
    },
)
EXPERIMENT = Experiment(
    "pictures", ROWS, {"small": SMALL}, __doc__, findings=findings, fixed=("data",), prepare=prepare
)

if __name__ == "__main__":
    main(EXPERIMENT)
