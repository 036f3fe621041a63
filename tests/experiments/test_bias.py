"""Gender bias, and stereotypes in the training text."""

from collections import Counter
from types import SimpleNamespace

import pytest

from experiments import gender_bias, stereotypes
from experiments.gender_bias import FEMALE, MALE, NEUTRAL, Case, gender_of, read_winomt, scores
from experiments.judging import FAILS, HOLDS, NOT_RUN
from experiments.stereotypes import CHOOSING, HELPING, MOST, PROBED, REMEDIES, accuracy, form
from tests.tiny_runs import read_lines
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError

# Gender bias -------------------------------------------------------------------------------------


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
    for wrong in ("female\t9\tThe clerk.\tclerk\n", "female\n", "Female\t1\tThe clerk.\tclerk\n"):
        path.write_text(wrong)
        with pytest.raises(DataError, match="line 1: expected GENDER, PLACE"):
            read_winomt(path)


def test_sentences_by_hand_have_both_languages(tmp_path):
    path = tmp_path / "handcrafted"
    path.write_text("the clerk finished her work .|Die Beamtin beendete ihre Arbeit .\n")
    assert gender_bias.error_of_the_rule(path) == 0
    for wrong in (
        "the clerk finished her work .\tDie Beamtin\n",
        "Die Beamtin .|her clerk left .\n",
    ):
        path.write_text(wrong)
        with pytest.raises(DataError, match=r"handcrafted, line 1: expected ENGLISH\|GERMAN"):
            gender_bias.error_of_the_rule(path)


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


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"src": "fr", "tgt": "de"}, None),
        ({"src": "en", "tgt": "fr"}, None),
        ({"directions": ("de-en", "fr-de")}, None),
        ({"src": "en", "tgt": "de"}, "The clerk"),
        ({"directions": ("en-fr", "en-de")}, ">>de<< The clerk"),
    ],
)
def test_a_run_has_to_translate_english_into_german(changes, first, tmp_path, monkeypatch):
    """WinoMT's sentences are English, and the rule about gender is for German."""

    class Ended(Exception):
        pass

    def translate(lines: list[str]) -> list[str]:
        assert lines[0].startswith(first)
        raise Ended

    run = SimpleNamespace(config=SimpleNamespace(data=DataConfig(**changes)), translate=translate)
    monkeypatch.setattr("transformer_jax.api.load", lambda *_: run)
    monkeypatch.setattr("sys.argv", ["gender_bias", "--workdir=RUN"])
    (tmp_path / "winomt").mkdir()
    pro, anti = (f"{own}\t1\tThe clerk lost {own} key.\tclerk\n" for own in ("male", "female"))
    for name, content in (("en", pro + anti), ("en_pro", pro), ("en_anti", anti)):
        path = tmp_path / "winomt" / f"{name}.txt"
        path.write_text(content)
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    if first:
        with pytest.raises(DataError, match="handcrafted.en-de: no such file"):
            gender_bias.main()  # before it translates
    (tmp_path / "gender-pairs").mkdir()
    by_hand = "The clerk finished her work.|Die Beamtin beendete ihre Arbeit."
    (tmp_path / "gender-pairs" / "handcrafted.en-de").write_text(f"{by_hand}\n")
    with pytest.raises(Ended if first else ConfigError):
        gender_bias.main()
    path.write_text(pro)
    with pytest.raises(DataError, match=r"en_pro.txt and en_anti.txt share 1 sentences, such as"):
        gender_bias.main()
    path.write_text("female\t1\tThe clerk lost a key.\tclerk\n")
    with pytest.raises(DataError, match="en_anti.txt has 1 sentences that are not in en.txt, such"):
        gender_bias.main()


def test_a_system_that_translates_every_occupation_as_male(monkeypatch):
    monkeypatch.setattr(gender_bias, "hmm_alignments", lambda pairs: [((1, 1),)] * len(pairs))
    cases = [Case(gender, 1, ["The", "clerk", "left."]) for gender in (MALE, FEMALE)]
    found = gender_bias.found_genders(cases, ["Der Beamte ging.", "Der Beamte ging."])
    assert found == [MALE, MALE]


# Stereotypes in the training text ----------------------------------------------------------------


def test_the_dial_is_the_share_of_sentences_with_the_stereotype():
    text = [*stereotypes.biased(3_000, 0.9, 0, HELPING)]
    assert {one.occupation for one in text} == {*HELPING}
    share = sum(one.gender == stereotypes.stereotype(one.occupation) for one in text) / len(text)
    assert share == pytest.approx(0.9, abs=0.02)
    usual = Counter(stereotypes.stereotype(name) for name in (*HELPING, *PROBED, *CHOOSING))
    assert usual == {"m": 12, "f": 12}
    for one in text[:200]:
        words = {"m": ({"he", "his"}, "Der"), "f": ({"she", "her"}, "Die")}[one.gender]
        assert words[0] & {*one.src.split()} and one.tgt.split()[0] == words[1]
        assert form(one.occupation, one.gender) in one.tgt.split()


def test_the_probe_asks_for_what_no_sentence_of_training_has():
    assert not {*HELPING} & {*PROBED} and not {*CHOOSING} & {*HELPING, *PROBED}
    things = {thing.en for thing in stereotypes.UNSEEN}
    assert not things & {thing.en for thing in stereotypes.SHOWN}
    asked = stereotypes.probe(PROBED)
    assert len(asked) == 160 and Counter(one.gender for one in asked) == {"m": 80, "f": 80}
    assert all(things & {*one.src.split()} for one in asked)


def test_a_translation_is_right_with_one_form_of_the_right_gender():
    asked = stereotypes.probe(PROBED)
    he, she = (next(one for one in asked if one.gender == gender) for gender in "mf")
    man, woman = form(he.occupation, "m"), form(he.occupation, "f")
    lines = [
        f"Der {man} geht .",
        f"Die {woman} geht .",
        f"Der {man} und die {woman} .",
        "Er geht .",
    ]
    assert accuracy(lines, [he] * 4) == 25 and accuracy(lines, [she] * 4) == 25


def test_the_texts_of_the_rows_and_remedies_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(stereotypes, "TEXT", tmp_path)
    monkeypatch.setattr(stereotypes, "PAIRS", 500)
    stereotypes.write_text()
    stems = {
        stem for own in REMEDIES.values() for one in own.values() for stem in one["data.train"]
    }
    stems |= {stem for own in stereotypes.ROWS.values() for stem in own["data.train"]}
    assert {path.stem for path in tmp_path.iterdir()} == {*stems, "valid", "test"}
    sizes = {stem: len(read_lines(tmp_path / f"{stem}.de")) for stem in stems}
    assert sizes["train99"] == 6_500 and sizes["balanced"] == sizes["replay"] == sizes["biased"]


def found(rare, bleu, choice=50.0, valid=None):
    return {
        stereotypes.RARE: rare,
        stereotypes.BLEU: bleu,
        stereotypes.VALID: bleu if valid is None else valid,
        stereotypes.CHOICE: choice,
    }


def test_the_best_setting_of_those_that_lose_little_is_taken():
    before = found(10.0, 90.0)
    settings = {
        "a": found(30.0, 89.5, 60.0),
        "b": found(20.0, 0.0, 70.0, 89.1),
        "c": found(90, 80, 95),
    }
    assert stereotypes.chosen(settings, before) is settings["b"]
    lossy = {"a": found(30.0, 85.0, 60.0), "b": found(20.0, 80.0, 70.0)}
    assert stereotypes.chosen(lossy, before) is lossy["a"]


def test_verdicts_compare_each_seed_with_its_own_start():
    before, after = {}, {remedy: {} for remedy in REMEDIES}
    for seed in range(3):
        before[MOST, seed] = found(10 + seed, 90.0)
        before[stereotypes.EVEN, seed] = found(95.0, 90.0)
        gains = {
            stereotypes.ALONE: (50, -9.0),
            stereotypes.REPLAY: (40, -0.1),
            stereotypes.ELASTIC: (30, -0.5),
            stereotypes.CONTROL: (-5, -0.2),
            "seen": (80, 0.0),
            "seen, elastic weights": (70, -0.1),
        }
        for remedy, (rare, bleu) in gains.items():
            after[remedy][MOST, seed] = {
                setting: found(10 + 1.1 * seed + rare, 90.0 + bleu + seed / 100, n)
                for n, setting in enumerate(REMEDIES[remedy])
            }
    rows = {
        claim: (verdict, change) for claim, verdict, change in stereotypes.verdicts(after, before)
    }
    assert rows.pop("the dial works") == (HOLDS, "-84.0")
    not_run = ("seen, replay: helps", "seen, replay: keeps the rest")
    assert rows == {
        "balanced pairs: helps": (HOLDS, "+50.1"),
        "balanced pairs: keeps the rest": (FAILS, "-9.0"),
        "replay: helps": (HOLDS, "+40.1"),
        "replay: keeps the rest": (HOLDS, "-0.1"),
        "replay: forgets less": (HOLDS, "+8.9"),
        "elastic weights: helps": (HOLDS, "+30.1"),
        "elastic weights: keeps the rest": (HOLDS, "-0.5"),
        "elastic weights: forgets less": (HOLDS, "+8.5"),
        "control: helps": (FAILS, "-4.9"),
        "control: keeps the rest": (HOLDS, "-0.2"),
        "seen: helps": (HOLDS, "+80.1"),
        "seen: keeps the rest": (HOLDS, "+0.0"),
        "seen, elastic weights: helps": (HOLDS, "+70.1"),
        "seen, elastic weights: keeps the rest": (HOLDS, "-0.1"),
        **dict.fromkeys(not_run, (NOT_RUN, "")),
    }
