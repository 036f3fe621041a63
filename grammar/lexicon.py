"""The lexicon: reads the words of the grammar from the .tsv files beside this module.

A file has one entry per line, and cells are separated by tabs. The first line names the columns;
the comment above it says what they mean. "-" is an empty cell, and empty cells at the end of a line
may be left out. Blank lines and comments, which start with "#", are skipped.
"""

import pkgutil
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple, TypeVar

from grammar import entries
from grammar.entries import Fixed
from transformer_jax.errors import DataError

T = TypeVar("T")


class Line(NamedTuple):
    """A line of a file, with a cell for each column; an empty cell is ""."""

    file: str
    number: int
    cells: list[str]

    def error(self, message: object) -> DataError:
        """An error with the place of the line."""
        return DataError(f"Lexicon, {self.file}, line {self.number}: {message}.")


def lines(file: str, text: str, columns: str, optional: str = "") -> Iterator[Line]:
    """The entries of a file.

    Args:
      file: its name, for errors.
      text: its content.
      columns: the names of the first columns, separated by commas; lines must have these.
      optional: the names of the columns after them.

    Raises:
      DataError: for a wrong header, and for a line with too few or too many cells, or a blank one.
    """
    least = len(columns.split(","))
    names = [name.strip() for name in f"{columns},{optional}".split(",") if name.strip()]
    wanted = f"{', '.join(names)}, separated by single tabs"
    header = False
    for number, content in enumerate(text.splitlines(), 1):
        if not content.strip() or content.startswith("#"):
            continue
        cells = [cell.strip() for cell in content.split("\t")]
        line = Line(file, number, cells)
        if not header:
            if cells != names:
                raise line.error(
                    f"the first line after the comment must name the columns: {wanted}"
                )
            header = True
            continue
        if not least <= len(cells) <= len(names):
            raise line.error(f"{len(cells)} cells, but the columns are {wanted}")
        if "" in cells:
            blank = names[cells.index("")]
            raise line.error(f'the cell of the column "{blank}" is blank; "-" is an empty cell')
        while "-" in cells:
            cells[cells.index("-")] = ""
        cells += [""] * (len(names) - len(cells))
        yield line
    if not header:
        raise DataError(f"Lexicon, {file}: no line names the columns, which are {wanted}.")


def read(
    file: str, columns: str, optional: str, make: Callable[..., T]
) -> Iterator[tuple[Line, T]]:
    """The lines of a file of this folder, each with what `make` returns for its cells."""
    # importlib.resources would add a quarter to the time of importing the grammar.
    content = pkgutil.get_data(__package__, file)
    assert content is not None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise DataError(f"Lexicon, {file}, line {number}: the text is not UTF-8.") from error
    for line in lines(file, text, columns, optional):
        try:
            yield line, make(*line.cells)
        except ValueError as error:
            raise line.error(error) from error


class Named(dict[str, tuple[T, ...]]):
    """The entries of a file by the names in its first column, which is "name" or "name, name"."""

    def __init__(self, file: str, columns: str, optional: str, make: Callable[..., T]) -> None:
        super().__init__()
        self.file = file

        def named(names: str, *cells: str) -> tuple[str, T]:
            return names, make(*cells)

        for _, (names, entry) in read(file, columns, optional, named):
            for name in names.split(","):
                self[name.strip()] = (*self.get(name.strip(), ()), entry)

    def __missing__(self, name: str) -> tuple[T, ...]:
        raise DataError(
            f'Lexicon, {self.file}: no line is named "{name}", but the grammar uses it.'
        )

    def all(self) -> tuple[T, ...]:
        """The entries of every name, in the order of the file."""
        return tuple(dict.fromkeys(entry for group in self.values() for entry in group))

    def only(self, name: str) -> T:
        """The one entry of that name. Raises DataError if there is none, or several."""
        first, *others = self[name]
        if others:
            raise DataError(f'Lexicon, {self.file}: several lines are named "{name}".')
        return first


def unique(found: Iterable[tuple[Line, T]], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    """The entries. Raises DataError, naming the line, if two have the same key."""
    seen: dict[Hashable, int] = {}
    kept = []
    for line, entry in found:
        if first := seen.get(key(entry)):
            raise line.error(f"line {first} has the same word")
        seen[key(entry)] = line.number
        kept.append(entry)
    return tuple(kept)


def checked(found: Iterable[tuple[Line, T]], spec: Callable[[T], str]) -> Iterator[tuple[Line, T]]:
    """The entries. Raises DataError if one asks for a noun or a kind that is not there."""
    for line, entry in found:
        unknown = set(spec(entry).split()) - KNOWN
        if unknown:
            import difflib  # here, because only errors need it and imports must stay fast

            kind = min(unknown).removeprefix("-")
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f'; the nearest is "{near[0]}"' if near else ""
            raise line.error(f'nouns.tsv has neither the noun nor the kind "{kind}"{hint}')
        yield line, entry


def _number(number: str, en: str, de: str) -> tuple[int, Fixed]:
    if not number.isdigit():
        raise ValueError(f'"{number}" is not a number in digits')
    return int(number), entries.fixed(en, de)


NOUNS = unique(
    read("nouns.tsv", "english, german, plural, kinds", "marks, genitive", entries.noun),
    lambda noun: noun.en,
)
# What a specification of nouns may name: kinds, nouns and "neutral".
KINDS = {"neutral"}.union({noun.en for noun in NOUNS}, *(noun.kinds for noun in NOUNS))
KNOWN = KINDS | {f"-{kind}" for kind in KINDS}
_VERBS = read(
    "verbs.tsv",
    "frame, english, german, subject",
    "object, preposition, auxiliary, aspect",
    entries.verb,
)
VERBS = unique(
    checked(_VERBS, lambda verb: f"{verb.subject} {verb.object}"),
    lambda verb: (verb.frame, verb.en.whole),
)
_ADJECTIVES = unique(
    checked(
        read("adjectives.tsv", "english, german", "kinds, marks, opposites", entries.adjective),
        lambda adjective: adjective.kinds,
    ),
    lambda adjective: adjective.en,
)
ADJECTIVES = tuple(adjective for adjective in _ADJECTIVES if not adjective.ordinal)
ORDINALS = tuple(adjective for adjective in _ADJECTIVES if adjective.ordinal)
NUMBERS = dict(unique(read("numbers.tsv", "number, english, german", "", _number), itemgetter(0)))
ADVERBIALS = Named("adverbials.tsv", "uses, english, german", "alignment", entries.fixed)
CONJUNCTIONS = Named("conjunctions.tsv", "name, english, german", "", entries.fixed)
PREPOSITIONS = Named(
    "prepositions.tsv", "uses, english, german, case, kinds", "", entries.preposition
)
DETERMINERS = Named(
    "determiners.tsv", "name, singular, plural, german, endings, definite", "", entries.determiner
)
MODALS = Named(
    "modals.tsv",
    "name, german, present, past, negative present, negative past",
    "",
    entries.modal,
)


def lexicon_size() -> int:
    """How many words there are: each translation counts once, whatever its forms and frames."""
    words = {("noun", noun.en, noun.de) for noun in NOUNS}
    words |= {("verb", verb.en.whole, verb.de.whole) for verb in VERBS}
    words |= {("adjective", entry.en, entry.de) for entry in _ADJECTIVES}
    words |= {("number", entry.en, entry.de) for entry in NUMBERS.values()}
    words |= {("adverbial", entry.en, entry.de) for entry in ADVERBIALS.all()}
    words |= {("conjunction", entry.en, entry.de) for entry in CONJUNCTIONS.all()}
    words |= {("preposition", entry.en, entry.de) for entry in PREPOSITIONS.all()}
    words |= {("determiner", entry.en or entry.en_plural, entry.de) for entry in DETERMINERS.all()}
    words |= {("modal", entry.present["1s"], entry.de) for entry in MODALS.all()}
    words.discard(("determiner", "", ""))  # the empty entry, for nouns without one
    return len(words)
