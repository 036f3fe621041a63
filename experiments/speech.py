"""Spoken digits, written as words: soft, monotonic and chunkwise attention, and hidden frames.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.speech --scale=small

The questions: does the model of these pages read speech; does it read a speaker whom it never
heard; where does its attention look, and does attention that can only move forward (Raffel et al.
2017; Chiu and Raffel 2018), which was made for speech, do better; does hiding frames and bands help
(SpecAugment, Park et al. 2019)?

The text is made of the recordings in spoken-digits (Free Spoken Digit Dataset, 8 kHz): 3 to 6
digits of one speaker, one recording after the other, such as "three one four". Training has 4,000
of five speakers, of their recordings 5 to 49; the tests are 400 of the same speakers' official test
recordings, 0 to 4, and 400 of a sixth one, whom training never has. The rows are a model of 2 + 2
layers, d_model 128, 40 mel bands, positions of 40 ms, 600 updates of about 36 strings; the scale
`long` has 2,400 of the first row alone. The validation strings are others, of the same recordings
as in training: their perplexity does not tell how a new recording is read.

The word error rate is that of the best translation with a beam of 1. Where attention looks is
measured on the right text of the first 100 test strings: the mean of the heads of the last layer.
A digit is found if the largest weight where it is written is within its recording. The joins are
estimated from the same weights: between two digits, the place that leaves most weight of the first
before it and of the second after it; the table has the median distance to the true join, beside
that of cutting every string into equal parts.

The rules, written before the runs; all are over seeds, by Student's t, p < 0.05. "It reads speech"
holds for a row if its word error rate on known speakers is below 5 %, and does not if it is above.
"A new speaker is harder" holds if the rate of the sixth speaker is more than twice that of the
others, and does not if it is less. "Attention finds the digits" holds if it finds more than 90 %,
and does not if fewer. "Better than softmax" holds if its rate is lower than that of the row
softmax, on the mean of both tests, and does not if it is higher.
"""

import random
import statistics
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, more, page_of_runs
from experiments.short_demo import data_file, on_text, updates, write_split
from transformer_jax.errors import DataError
from transformer_jax.evaluation.attention import Attention
from transformer_jax.evaluation.bleu import word_errors
from transformer_jax.files import open_whole
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

TEXT = Path("runs", "speech", "text")
WORDS = "zero one two three four five six seven eight nine".split()
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo")
UNHEARD = "yweweler"
RATE = 8_000  # samples a second
POSITION = 0.040  # seconds
TEST_RECORDINGS, RECORDINGS = 5, 50  # of each speaker and digit; the tests have the first ones
SIZES = {"train": 4_000, "valid": 200, "test": 400, "unheard": 400}  # strings
LOOKED_AT = 100  # strings whose attention is read
SOFTMAX = "softmax"
ROWS: dict[str, Overrides] = {
    SOFTMAX: {},
    "softmax, hidden frames": {"data.masked_bands": 12, "data.masked_frames": 20},
    "monotonic": {"model.cross_normalizer": "monotonic"},
    "chunkwise": {"model.cross_normalizer": "chunkwise"},
}
MOST_ERRORS, HARDER, FOUND = 0.05, 2.0, 0.9


# Text ----------------------------------------------------------------------------------------


class Spoken(NamedTuple):
    """A string of digits, and the recordings that it is made of."""

    digits: tuple[int, ...]
    speaker: str
    recordings: tuple[int, ...]

    @property
    def text(self) -> str:
        """The digits as words."""
        return " ".join(WORDS[digit] for digit in self.digits)

    @property
    def names(self) -> list[str]:
        """The names of the recordings."""
        numbered = zip(self.digits, self.recordings, strict=True)
        return [f"{digit}_{self.speaker}_{number}.wav" for digit, number in numbered]


def strings(split: str) -> list[Spoken]:
    """The strings of a split."""
    draw = random.Random(split)
    speakers = (UNHEARD,) if split == "unheard" else SPEAKERS
    numbers = range(TEST_RECORDINGS)
    if split in ("train", "valid"):
        numbers = range(TEST_RECORDINGS, RECORDINGS)
    found = []
    for _ in range(SIZES[split]):
        digits = tuple(draw.randrange(10) for _ in range(draw.randint(3, 6)))
        recordings = tuple(draw.choice(numbers) for _ in digits)
        found.append(Spoken(digits, draw.choice(speakers), recordings))
    return found


def samples_of(archive: Path) -> dict[str, np.ndarray]:
    """The samples of each recording, int16, by its name."""
    found = {}
    with open_whole(archive) as files:
        for member in files:
            file = files.extractfile(member) if member.name.endswith(".wav") else None
            if file is not None:
                with wave.open(file) as sound:
                    samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
                found[Path(member.name).name] = samples
    names = {name for stem in SIZES for one in strings(stem) for name in one.names}
    if lacking := names - found.keys():
        raise DataError(f"{archive} has no recording {min(lacking)}.")
    return found


def prepare() -> None:
    """Writes the text, unless it is there."""
    if not (TEXT / "unheard.words").exists():
        write_text(TEXT, samples_of(archive()))


def write_text(folder: Path, samples: dict[str, np.ndarray]) -> None:
    """Writes STEM.wavs, STEM.words, and the recordings that STEM.wavs names."""
    for stem in SIZES:
        (folder / stem).mkdir(parents=True, exist_ok=True)
        names = []
        for number, one in enumerate(strings(stem)):
            names.append(f"{stem}/{number}.wav")
            with wave.open(str(folder / names[-1]), "wb") as sound:
                sound.setparams((1, 2, RATE, 0, "NONE", ""))
                sound.writeframes(np.concatenate([samples[name] for name in one.names]).tobytes())
        write_split(folder, stem, {"wavs": names, "words": [one.text for one in strings(stem)]})


def joins_of(samples: dict[str, np.ndarray]) -> list[list[float]]:
    """Where recordings are joined in each of the first test strings, in seconds, 0 and end too."""
    return [
        [0.0, *np.cumsum([len(samples[name]) / RATE for name in one.names])]
        for one in strings("test")[:LOOKED_AT]
    ]


# Measurement ---------------------------------------------------------------------------------


def weights_of_words(cross: Attention) -> np.ndarray:
    """The weights where each word begins, float32 `[words, source positions]`."""
    mean_LM = cross.weights_NHLM[-1].mean(0)
    begins = [piece.startswith("\u2581") for piece in cross.attending]
    return mean_LM[np.flatnonzero(begins)]


def found_digits(weights_WM: np.ndarray, joins: Sequence[float]) -> list[bool]:
    """Whether each word's largest weight is within its recording."""
    seconds = (weights_WM.argmax(1) + 0.5) * POSITION
    return [
        first <= at < end for at, first, end in zip(seconds, joins[:-1], joins[1:], strict=True)
    ]


def estimated_joins(weights_WM: np.ndarray) -> list[float]:
    """Where one word's recording ends and the next one's begins, in seconds, by their weights."""
    found = []
    for first, second in zip(weights_WM[:-1], weights_WM[1:], strict=True):
        before = np.cumsum(np.concatenate([[0], first]))
        after = second.sum() - np.cumsum(np.concatenate([[0], second]))
        found.append(float((before + after).argmax() * POSITION))
    return found


def speech_of(job: Job) -> Evidence:
    """Word error rates of both tests, and where attention looks."""
    from transformer_jax.api import load

    run = load(job.folder)
    found: Evidence = {}
    for split in ("test", "unheard"):
        lines = [str(TEXT / split / f"{n}.wav") for n in range(SIZES[split])]
        wanted = [one.text for one in strings(split)]
        found[split] = word_errors(run.translate(lines), wanted).rate
    samples = samples_of(archive())
    hits, distances, cut = list[bool](), list[float](), list[float]()
    for number, joins in enumerate(joins_of(samples)):
        text = strings("test")[number].text
        cross = run.attention(str(TEXT / "test" / f"{number}.wav"), text).kinds["cross"]
        weights_WM = weights_of_words(cross)
        hits += found_digits(weights_WM, joins)
        inner = joins[1:-1]
        pairs = zip(estimated_joins(weights_WM), inner, strict=True)
        distances += [abs(one - other) for one, other in pairs]
        equal = np.linspace(0, joins[-1], len(joins))[1:-1]
        cut += [abs(one - other) for one, other in zip(equal, inner, strict=True)]
    found |= {"finds": statistics.fmean(hits), "joins": statistics.median(distances)}
    return found | {"equal parts": statistics.median(cut)}


def archive() -> Path:
    """The file of the recordings."""
    return data_file("spoken-digits", "recordings.tar.gz")


# Verdicts ------------------------------------------------------------------------------------

RULES = [
    Rule("it reads speech", at("test"), -1, MOST_ERRORS),
    Rule("a new speaker is harder", lambda x: x["unheard"] - HARDER * x["test"], 1),
    Rule("attention finds the digits", at("finds"), 1, FOUND),
    Rule("better than softmax", more(lambda x: (x["test"] + x["unheard"]) / 2), -1, 0, (SOFTMAX,)),
]
COLUMNS = [
    Column("word errors, known speakers, %", lambda x: 100 * x["test"], ".1f"),
    Column("a new speaker, %", lambda x: 100 * x["unheard"], ".1f"),
    Column("digits found, %", lambda x: 100 * x["finds"], ".1f"),
    Column("joins, ms", lambda x: 1_000 * x["joins"], ".0f"),
    Column("equal parts, ms", lambda x: 1_000 * x["equal parts"], ".0f"),
]
SMALL = on_text(
    TEXT,
    {
        "data.src": "wavs",
        "data.tgt": "words",
        "data.src_kind": "speech",
        "data.sample_rate": RATE,
        "data.mel_bands": 40,
        "data.stacked_frames": 4,
        "data.max_length": 160,
        "vocabulary.size": 315,  # every word is a subword
        "model.features": 160,
        "model.dropout": 0.1,
        **updates(600, every=200),
        "train.checkpoint_every": 300,
        "train.tokens_per_batch": 200,
        "train.row_length": 16,
        "decode.beam_size": 1,
        "decode.max_length": 160,
    },
)
LONG = {"train.steps": 2_400, "train.decay_steps": 2_400, "train.checkpoint_every": 800}
SCALES = {
    "small": SMALL,
    "long": SMALL._replace(overrides={**SMALL.overrides, **LONG}, rows=(SOFTMAX,)),
}
EXPERIMENT = Experiment(
    "speech",
    ROWS,
    SCALES,
    __doc__,
    findings=page_of_runs(speech_of, RULES, COLUMNS, "Errors, and where attention looks"),
    metrics=("perplexity",),
    prepare=prepare,
)

if __name__ == "__main__":
    main(EXPERIMENT)
