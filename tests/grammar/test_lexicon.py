"""The files of the lexicon: what a line may be, and how a malformed one is refused."""

import pkgutil
import runpy
from pathlib import Path

import pytest

from grammar import lexicon
from grammar.entries import Fixed
from grammar.lexicon import ADJECTIVES, lines
from transformer_jax.errors import DataError

pytestmark = pytest.mark.slow("nothing but the folder grammar changes these")

FOLDER = Path(lexicon.__file__).parent


def text_of(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")


def read_with(monkeypatch, file: str, text: str, encoding: str = "utf-8") -> dict:
    """What lexicon.py defines when one file has another content."""

    def get_data(package: str, name: str) -> bytes:
        return text.encode(encoding) if name == file else text_of(name).encode()

    monkeypatch.setattr(pkgutil, "get_data", get_data)
    return runpy.run_path(lexicon.__file__, {"__package__": lexicon.__package__})


# file, what is replaced, the replacement, what the error says after the line number
MALFORMED = """
nouns.tsv | dog→der Hund→ | dog→Hund→ | "Hund" is not a noun after der, die or das
nouns.tsv | dog→der Hund→ | dog  der Hund→ | 3 cells, but the columns are english, german, plural,
nouns.tsv | dog→der Hund→ | dog→der Hund→→ | the cell of the column "plural" is blank
nouns.tsv | dog→der Hund→ | boy→der Hund→ | line 16 has the same word
nouns.tsv | youngster→weak | youngster→week | the mark "week" is not one of weak, name, neutral
nouns.tsv | →kinds→marks | →kind→marks | the first line after the comment must name the columns
verbs.tsv | transitive→need | transitve→need | the frame "transitve" is not one of intransitive,
verbs.tsv | hide hid hidden | hide hid | "hide hid" is not an infinitive alone, or with its past
verbs.tsv | findet fand ge | fand ge | is not an infinitive alone, or with its third person, past
verbs.tsv | person→food¶ | person→fod¶ | neither the noun nor the kind "fod"; the nearest is "food"
verbs.tsv | person→food¶ | person¶ | a verb of the frame transitive needs an object
verbs.tsv | cough→husten→person | cough→husten→person→food | frame intransitive has no object
verbs.tsv | message→for auf acc | message→for auf | "for auf" is not like "for auf acc"
verbs.tsv | animal→-→-→sein→event | animal→-→-→sein→once | the aspect "once" is not one of activity
verbs.tsv | animal→-→-→sein→event | animal→-→-→war→event | the auxiliary "war" is not one of haben,
adjectives.tsv | gut besser best | gut besser | is not an adjective alone, or with its comparative
adjectives.tsv | erst→-→ordinal | erst | an adjective needs kinds, unless it is an ordinal
adverbials.tsv | 0-0 1-0 2-1¶now | 0-0 1-0¶now | "0-0 1-0" does not link all words of "at
prepositions.tsv | auf→dat→seat | auf→dativ→seat | the case "dativ" is not one of acc, dat, gen
determiners.tsv | jed→der→yes | jed→der→maybe | definite "maybe" is not one of yes, no
modals.tsv | can→können | can→koennen | german.py has no forms of the modal verb "koennen"
numbers.tsv | 12→twelve | XII→twelve | "XII" is not a number in digits
"""
CASES = [
    [part.replace("→", "\t").replace("¶", "\n") for part in case.split(" | ")]
    for case in MALFORMED.strip().splitlines()
]


@pytest.mark.parametrize("file, old, new, message", CASES, ids=[case[3][:40] for case in CASES])
def test_a_malformed_line_is_refused_with_its_place(monkeypatch, file, old, new, message):
    text = text_of(file)
    assert text.count(old) == 1
    number = text[: text.index(old)].count("\n") + 1
    with pytest.raises(DataError) as error:
        read_with(monkeypatch, file, text.replace(old, new))
    assert str(error.value).startswith(f"Lexicon, {file}, line {number}: ")
    assert message in str(error.value)


def test_another_encoding_than_utf_8_is_refused(monkeypatch):
    text = text_of("numbers.tsv")
    number = text[: text.index("ü")].count("\n") + 1
    with pytest.raises(DataError, match=f"numbers.tsv, line {number}: the text is not UTF-8"):
        read_with(monkeypatch, "numbers.tsv", text, "latin-1")


def test_an_empty_file_is_refused(monkeypatch):
    with pytest.raises(DataError, match="numbers.tsv: no line names the columns, which are number"):
        read_with(monkeypatch, "numbers.tsv", "# nothing\n")


def test_a_word_that_the_grammar_uses_by_name_must_be_there_once(monkeypatch):
    the = "the\tthe\tthe\td\tdefinite\tyes\n"
    text = text_of("determiners.tsv")
    determiners = read_with(monkeypatch, "determiners.tsv", text.replace(the, ""))["DETERMINERS"]
    with pytest.raises(
        DataError, match='determiners.tsv: no line is named "the", but the grammar uses it'
    ):
        determiners.only("the")
    determiners = read_with(monkeypatch, "determiners.tsv", text + the)["DETERMINERS"]
    with pytest.raises(DataError, match='determiners.tsv: several lines are named "the"'):
        determiners.only("the")


def test_a_new_line_is_a_new_word(monkeypatch):
    line = "fox/foxes\tder Fuchs\tFüchse\tanimal wild\n"
    nouns = read_with(monkeypatch, "nouns.tsv", text_of("nouns.tsv") + line)["NOUNS"]
    assert [noun.en for noun in nouns] == [noun.en for noun in lexicon.NOUNS] + ["fox"]
    assert nouns[-1].kinds == {"animal", "wild"} and nouns[-1].german("gen", False) == "Fuchses"


def test_cells_at_the_end_may_be_left_out_and_a_minus_is_an_empty_one():
    text = "# a comment\na\tb\tc\n\nx\t-\n-\ty y\tz\n"
    assert list(lines("a.tsv", text, "a, b", "c")) == [
        ("a.tsv", 4, ["x", "", ""]),
        ("a.tsv", 5, ["", "y y", "z"]),
    ]


def test_the_opposites_of_adjectives_are_adjectives():
    opposites = set().union(*(adjective.opposites for adjective in ADJECTIVES))
    assert opposites <= {adjective.en for adjective in ADJECTIVES} and len(opposites) > 10


def test_a_line_with_several_uses_is_in_all_of_them():
    monday = [entry for entry in lexicon.ADVERBIALS["past"] if entry.en == "on Monday"]
    assert isinstance(monday[0], Fixed) and monday[0] in lexicon.ADVERBIALS["future"]


def test_files_have_no_spaces_that_nobody_sees():
    files = sorted(FOLDER.glob("*.tsv"))
    assert len(files) == 9
    for path in files:
        for number, line in enumerate(text_of(path.name).splitlines(), 1):
            assert line == line.strip() and " \t" not in line and "\t " not in line, (path, number)
