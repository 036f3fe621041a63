"""Text drawn as a picture, read and translated: what look-alike letters do to it and to subwords.

    python -m experiments.pictures --scale=small

The question: a model that sees its source drawn with a font has no vocabulary to break (Salesky et
al. 2021). What does it pay for that, and how much does it keep where letters are replaced by others
that look alike, where letters are swapped, where pixels are noisy, or where the font is larger?

The text is 20,000 pairs of the built-in corpus, English to German. Both rows are a model of 2 + 2
layers, d_model 128, 1,500 updates; one reads subwords, the other one pictures of the same lines:
DejaVu Sans of 12 pixels, in gray, cut into patches of 16 x 8 pixels. The test is 300 lines, changed
in five ways, with a beam of 1. Look-alikes: every third letter of those that Cyrillic has too is
the Cyrillic one. Swapped: in every third word of four letters or more the second and the third.
Noise: each pixel gets normal noise of 0.2 (black to white is 2). Larger: 13 pixels.

The rules, written before the runs; all are over seeds, by Student's t, p < 0.05. "It reads
pictures" holds if the row pictures has more than 90 % of the BLEU of the row subwords, and does not
if less. "Look-alikes change nothing" holds if the row pictures loses less than 1 BLEU to them while
the row subwords loses more than half, and does not if one of them is not so. "It bears swaps
better" holds if pictures lose a smaller share of their BLEU than subwords, and does not if more.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import sacrebleu
from PIL import Image, ImageDraw, ImageFont

from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import FAILS, OPEN, Column, judged, means
from experiments.own_text import on_text, write_split
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
SUBWORDS, PICTURES = "subwords", "pictures"
ROWS: dict[str, Overrides] = {
    SUBWORDS: {"data.src": "en"},
    PICTURES: {
        "data.src": "files",
        "data.src_kind": "pictures",
        "data.patch_height": HEIGHT,
        "data.patch_width": WIDTH,
        "model.features": HEIGHT * WIDTH,
        "data.max_length": 96,
    },
}
CLEAN, ALIKE, SWAPPED, NOISY, LARGE = "clean", "look-alikes", "swapped", "noise", "larger"


# Pictures ------------------------------------------------------------------------------------


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return ImageFont.truetype(str(folder / "DejaVuSans.ttf"), size)


def drawn(line: str, size: int = FONT) -> np.ndarray:
    """A line in black on white: uint8 `[HEIGHT, width]`."""
    picture = Image.new("L", (max(1, round(font(size).getlength(line))), HEIGHT), 255)
    # The baseline is where it is for every line, whatever letters it has.
    ImageDraw.Draw(picture).text((0, HEIGHT - 4), line, font=font(size), anchor="ls")
    return np.asarray(picture)


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
# How a line is drawn, of which this is the number.
WAYS: dict[str, Callable[[str, int], np.ndarray]] = {
    CLEAN: lambda line, number: drawn(line),
    ALIKE: lambda line, number: drawn(look_alike(line)),
    SWAPPED: lambda line, number: drawn(swapped(line)),
    NOISY: lambda line, number: noisy(drawn(line), number),
    LARGE: lambda line, number: drawn(line, LARGER),
}


def write_text(folder: Path) -> None:
    """Writes STEM.en, STEM.de and STEM.files, and the pictures that STEM.files names."""
    for stem, count in SIZES.items():
        pairs = built_in_pairs(stem, count)
        ways = WAYS if stem == "test" else (CLEAN,)
        for way in ways:
            (folder / stem / way).mkdir(parents=True, exist_ok=True)
            for number, pair in enumerate(pairs):
                picture = Image.fromarray(WAYS[way](pair.src, number))
                picture.save(file_of(folder, stem, way, number))
        names = [file_of(folder, stem, CLEAN, n).relative_to(folder) for n in range(count)]
        lines = {
            "en": [pair.src for pair in pairs],
            "de": [pair.tgt for pair in pairs],
            "files": names,
        }
        write_split(folder, stem, lines)


def file_of(folder: Path, stem: str, way: str, number: int) -> Path:
    """The picture of a line."""
    return folder / stem / way / f"{number}.png"


# Measurement ---------------------------------------------------------------------------------


def bleu_of(job: Job) -> Evidence:
    """BLEU of the test, changed in each way that the row can read."""
    from transformer_jax.api import load

    run = load(job.folder)
    pairs = built_in_pairs("test", SIZES["test"])
    references = [[pair.tgt for pair in pairs]]
    found: Evidence = {}
    for way in WAYS:
        if job.row == PICTURES:
            lines = [str(file_of(TEXT, "test", way, n)) for n in range(len(pairs))]
        elif way in CHANGES:
            lines = [CHANGES[way](pair.src) for pair in pairs]
        else:
            continue
        found[way] = sacrebleu.corpus_bleu(run.translate(lines), references).score
    return found


# Verdicts ------------------------------------------------------------------------------------

CLAIMS = ("it reads pictures", "look-alikes change nothing", "it bears swaps better")
MOST, LITTLE, HALF = 0.9, 1.0, 0.5


def verdicts(found: Found) -> list[str]:
    """The verdicts, in the order of CLAIMS."""
    own, base = of_seeds(found, PICTURES), of_seeds(found, SUBWORDS)
    both = [(own[seed], base[seed]) for seed in own if seed in base]
    keeps = judged([one[CLEAN] - one[ALIKE] for one, _ in both], LITTLE, -1)
    breaks = judged([1 - other[ALIKE] / other[CLEAN] for _, other in both], HALF, 1)
    return [
        judged([one[CLEAN] / other[CLEAN] for one, other in both], MOST, 1),
        keeps if keeps == breaks else FAILS if FAILS in (keeps, breaks) else OPEN,
        judged([_kept(one) - _kept(other) for one, other in both], 0, 1),
    ]


def _kept(found: Evidence) -> float:
    return found[SWAPPED] / found[CLEAN]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and the BLEU of both rows in each way."""
    found = of_jobs(folder / "evidence.json", jobs, bleu_of)
    columns = [Column(way, lambda x, way=way: x.get(way), ".1f") for way in WAYS]
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict"], [list(x) for x in zip(CLAIMS, verdicts(found), strict=True)]),
        Heading("BLEU, by what was done to the source"),
        means(columns, found, ROWS),
    ]


SMALL = on_text(
    TEXT,
    {
        "data.tgt": "de",
        "model.dropout": 0.1,
        "train.steps": 1_500,
        "train.decay_steps": 1_500,
        "train.valid_every": 500,
        "decode.beam_size": 1,
        "decode.max_length": 96,
    },
)
EXPERIMENT = Experiment("pictures", ROWS, {"small": SMALL}, __doc__, findings=findings)

if __name__ == "__main__":
    if not (TEXT / "test.files").exists():
        write_text(TEXT)
    sys.exit(main(EXPERIMENT))
