"""Gender bias: the rule for German, WinoMT's file and its scores by hand."""

import pytest

from experiments import gender_bias
from experiments.gender_bias import FEMALE, MALE, NEUTRAL, Case, gender_of, read_winomt, scores
from transformer_jax.errors import DataError


@pytest.mark.parametrize(
    ("line", "place", "gender"),
    [
        ("Der Mechaniker gab", 1, MALE),
        ("gab der Mechanikerin etwas", 2, FEMALE),  # a dative: the ending counts
        ("von einer guten Ärztin", 3, FEMALE),
        ("mit einer sehr guten Kraft", 4, None),  # its article is too far away
        ("dem alten Arzt", 2, MALE),
        ("Die Fachkraft", 1, FEMALE),
        ("das Kind", 1, NEUTRAL),
        ("eine Krankenschwester", 1, FEMALE),
        ("Kaufmann und Kunde", 0, MALE),
        ("in Berlin", 0, None),
    ],
)
def test_the_gender_of_a_noun(line, place, gender):
    assert gender_of(line.split(), [place]) == gender


def test_a_file_has_a_gender_a_place_and_a_sentence_in_each_line(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text("female\t1\tThe clerk lost her key.\tclerk\n")
    [case] = read_winomt(path)
    assert case == Case(FEMALE, 1, "The clerk lost her key.".split())
    assert case.line == "The clerk lost her key."
    for wrong in ("female\t9\tThe clerk.\tclerk\n", "female\n"):
        path.write_text(wrong)
        with pytest.raises(DataError, match="line 1: expected GENDER, PLACE"):
            read_winomt(path)


def test_the_scores_of_six_sentences():
    """Four are right. Of the female ones, one is taken as male and one is not seen."""
    genders = [MALE, MALE, FEMALE, FEMALE, NEUTRAL, FEMALE]
    cases = [Case(gender, 0, [str(n)]) for n, gender in enumerate(genders)]
    found = [MALE, None, FEMALE, MALE, NEUTRAL, None]
    got = scores(cases, found, {"0", "2"}, {"1", "3"})
    f1 = {MALE: 2 * 2 / (4 + 2), FEMALE: 2 * 1 / (1 + 3)}
    assert got == {
        "accuracy, %": pytest.approx(100 * 4 / 6),
        "dG": pytest.approx(100 * (f1[MALE] - f1[FEMALE])),
        "dS": 50,
        "M:F": 4,
        "no sign, %": pytest.approx(100 * 2 / 6),
    }


def test_a_system_that_translates_every_occupation_as_male(monkeypatch):
    monkeypatch.setattr(gender_bias, "hmm_alignments", lambda pairs: [((1, 1),)] * len(pairs))
    cases = [Case(gender, 1, ["The", "clerk", "left."]) for gender in (MALE, FEMALE)]
    found = gender_bias.found_genders(cases, ["Der Beamte ging.", "Der Beamte ging."])
    assert found == [MALE, MALE]
