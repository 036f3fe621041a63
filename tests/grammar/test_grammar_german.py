"""The inflection of the built-in corpus against paradigms written down by hand."""

import pytest

from grammar import english, german
from grammar.entries import adjective, noun
from grammar.lexicon import ADJECTIVES, DETERMINERS, NOUNS, VERBS
from grammar.phrases import NounPhrase, Pronoun, prepositional
from grammar.words import BARE, NUMBERS, NUMERALS
from tests.fixtures.cases import rows

pytestmark = pytest.mark.slow("nothing but the folder grammar changes these")

NOUN = {n.en: n for n in NOUNS}
VERB = {v.de.whole: v.de for v in VERBS}
ENGLISH = {v.en.whole: v.en for v in VERBS}
ADJECTIVE = {a.en: a for a in ADJECTIVES}
DETERMINER = {d.en or d.en_plural: d for d in DETERMINERS.all()} | {"three": NUMERALS[3], "-": BARE}


@pytest.mark.parametrize("row", rows("grammar/noun_phrases.tsv"), ids=" ".join)
def test_noun_phrases(row):
    words, number, *forms = row
    determiner, modifier, name = words.split()  # "-" is no determiner
    plural = number == "plural"
    phrase = NounPhrase(16, NOUN[name], DETERMINER[determiner], plural, ADJECTIVE[modifier])
    assert [" ".join(w.text for w in phrase.german(case)) for case in german.CASES] == forms


def test_nouns_by_their_classes():
    names = "boy child table prince secret lake film neighbor teacher egg".split()
    genitives = [NOUN[name].german("gen", plural=False) for name in names]
    assert " ".join(genitives) == (
        "Jungen Kindes Tisches Prinzen Geheimnisses Sees Films Nachbarn Lehrers Eies"
    )
    fox = noun("fox", "der Fuchs", "Füchse", "animal")  # a line that the lexicon does not have
    assert (fox.en_plural, fox.german("gen", False), fox.german("dat", True)) == (
        "foxes", "Fuchses", "Füchsen",
    )  # fmt: skip
    assert NOUN["boy"].german("nom", plural=False) == "Junge"
    datives = [NOUN[n].german("dat", plural=True) for n in ("child", "car", "woman", "teacher")]
    assert datives == ["Kindern", "Autos", "Frauen", "Lehrern"]


@pytest.mark.parametrize("row", rows("grammar/verbs.tsv"), ids=" ".join)
def test_german_verbs(row):
    infinitive, *forms = row
    verb = VERB[infinitive]
    found = [verb.finite(past, who) for past in (False, True) for who in ("1s", "3s", "3p")]
    assert [*found, verb.participle, verb.zu_infinitive or "-"] == forms


def test_verbs_of_motion_and_change_take_sein():
    of_being = {v.de.whole for v in VERBS if v.de.auxiliary == "sein"}
    assert of_being == set(
        "schwimmen springen fliegen ankommen aufwachen aufstehen einschlafen zurückkommen "
        "verschwinden sterben folgen entkommen gehen laufen fahren kommen zurückkehren".split()
    )


def test_modals_and_auxiliaries():
    forms = {
        "sein": "bin ist sind war waren",
        "haben": "habe hat haben hatte hatten",
        "werden": "werde wird werden wurde wurden",
        "können": "kann kann können konnte konnten",
        "müssen": "muss muss müssen musste mussten",
        "dürfen": "darf darf dürfen durfte durften",
        "wollen": "will will wollen wollte wollten",
        "sollen": "sollte sollte sollten sollte sollten",  # should, not shall
    }
    for name, expected in forms.items():
        present, past = german.IRREGULAR[name]
        found = [present["1s"], present["3s"], present["3p"], past["3s"], past["3p"]]
        assert " ".join(found) == expected


def test_pronouns_and_contractions():
    him, her, them = (Pronoun(16, form) for form in ("3sm", "3sf", "3p"))
    pronouns = [[p.german(c)[0].text for c in ("nom", "acc", "dat")] for p in (him, her, them)]
    assert pronouns == [["er", "ihn", "ihm"], ["sie", "sie", "ihr"], ["sie", "sie", "ihnen"]]
    assert " ".join(german.RELATIVE[c, "p"] for c in german.CASES) == "die die denen deren"
    assert " ".join(german.RELATIVE[c, "m"] for c in german.CASES) == "der den dem dessen"

    def phrase(de, case, name, determiner="the", modifier=None):
        nominal = NounPhrase(16, NOUN[name], DETERMINER[determiner], adjective=modifier)
        return " ".join(w.text for w in prepositional(32, "in", de, case, nominal).de)

    assert phrase("in", "dat", "garden") == "im Garten"
    assert phrase("in", "acc", "theater", modifier=ADJECTIVE["old"]) == "ins alte Theater"
    assert phrase("in", "acc", "garden") == "in den Garten"
    assert phrase("zu", "dat", "church") == "zur Kirche"
    assert phrase("zu", "dat", "station") == "zum Bahnhof"
    assert phrase("von", "dat", "doctor") == "vom Arzt"
    assert phrase("in", "dat", "garden", "this") == "in diesem Garten"


def test_comparison():
    compared = {a: (ADJECTIVE[a].de_comparative, ADJECTIVE[a].de_superlative) for a in ADJECTIVE}
    assert compared["old"] == ("älter", "ältest")
    assert compared["good"] == ("besser", "best")
    assert compared["expensive"] == ("teurer", "teuerst")
    assert compared["interesting"] == ("interessanter", "interessantest")
    assert compared["fast"] == ("schneller", "schnellst")
    assert compared["hot"] == ("heißer", "heißest")
    assert compared["modern"] == ("moderner", "modernst")
    assert adjective("deep", "tief", "lake").en_superlative == "deepest"
    pairs = {a: ADJECTIVE[a].en_comparative for a in ("happy", "beautiful", "big")}
    assert pairs == {"happy": "happier", "beautiful": "more beautiful", "big": "bigger"}


def test_units_come_before_tens():
    assert NUMBERS[21].de == "einundzwanzig"
    assert NUMBERS[37].de == "siebenunddreißig"
    assert NUMBERS[46].en == "forty-six" and NUMBERS[46].de == "sechsundvierzig"
    assert NUMBERS[70].de == "siebzig"


def test_english_forms():
    assert [ENGLISH["carry"].third, ENGLISH["carry"].past, ENGLISH["carry"].gerund] == [
        "carries", "carried", "carrying",
    ]  # fmt: skip
    assert ENGLISH["plan"].gerund == "planning" and ENGLISH["order"].past == "ordered"
    assert ENGLISH["lie"].gerund == "lying" and ENGLISH["see"].gerund == "seeing"
    assert ENGLISH["catch"].third == "catches" and ENGLISH["arrive"].gerund == "arriving"
    assert ENGLISH["turn on"].movable and not ENGLISH["look for"].movable
    assert [NOUN[n].en_plural for n in ("church", "story", "boy", "wolf", "potato", "child")] == [
        "churches", "stories", "boys", "wolves", "potatoes", "children",
    ]  # fmt: skip
    assert [english.article(w) for w in ("old", "university", "honest", "big", "easy")] == [
        "an", "a", "an", "a", "an",
    ]  # fmt: skip
    assert english.possessive("boss", plural=False) == "boss's"
    assert english.possessive("teachers", plural=True) == "teachers'"
