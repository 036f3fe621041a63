"""The texts that data.train, data.valid and data.test name: their stems, slices and marks."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SLICE = re.compile(r"(.+)\[(\d*):(\d*)\]")  # some of a stem's pairs, as in TFDS: train[:5000]
TEXT = re.compile(r"(.+?)(?::(\w+-\w+))?(?:@(\w+))?(?:\*(\d+(?:\.\d+)?))?")


class Text(NamedTuple):
    """A text of data.train, data.valid or data.test: STEM:SRC-TGT@TAG*WEIGHT, or less of it."""

    stem: str  # with its slice
    direction: str = ""  # "": each of data.directions
    tag: str = ""  # its source lines begin with >>TAG<<
    weight: float = 1.0  # how many times an epoch has each of its pairs

    @classmethod
    def of(cls, given: str) -> "Text":
        """The text that a config names."""
        found = TEXT.fullmatch(given)
        if found is None:  # it is refused where the config is checked
            return cls(given)
        return cls(found[1], found[2] or "", found[3] or "", float(found[4] or 1))

    @property
    def name(self) -> str:
        """What a config calls it, without the weight."""
        direction = f":{self.direction}" if self.direction else ""
        return f"{self.stem}{direction}" + (f"@{self.tag}" if self.tag else "")


def directed(texts: Iterable[Text], directions: Sequence[str]) -> Iterator[Text]:
    """Each text once in every direction, or in its own; without directions as it is."""
    for text in texts:
        for direction in (text.direction,) if text.direction else directions or ("",):
            yield text._replace(direction=direction)


def code(name: str) -> str:
    """What a source line begins with that has this target language or tag, as in OPUS-MT."""
    return f">>{name}<<"


def slice_of(stem: str) -> tuple[str, int, float]:
    """A stem without its slice, the first pair of the slice, and the one after its last."""
    found = SLICE.fullmatch(stem)
    if found is None:
        return stem, 0, math.inf
    return found[1], int(found[2] or 0), float(found[3]) if found[3] else math.inf


def overlap(stem: str, other: str) -> bool:
    """Whether two stems, with or without slices, share pairs."""
    (one, first, last), (another, start, end) = slice_of(stem), slice_of(other)
    return one == another and max(first, start) < min(last, end)
