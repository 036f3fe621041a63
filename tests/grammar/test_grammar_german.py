"""The inflection of the built-in corpus against paradigms written down by hand."""

import pytest

from grammar import english, german
from grammar.entries import adjective, noun
from grammar.lexicon import ADJECTIVES, DETERMINERS, NOUNS, VERBS
from grammar.phrases import NounPhrase, Pronoun, prepositional
from grammar.words import BARE, NUMBERS, NUMERALS

pytestmark = pytest.mark.slow("nothing but the folder grammar changes these")

NOUN = {n.en: n for n in NOUNS}
VERB = {v.de.whole: v.de for v in VERBS}
ENGLISH = {v.en.whole: v.en for v in VERBS}
ADJECTIVE = {a.en: a for a in ADJECTIVES}
DETERMINER = {d.en or d.en_plural: d for d in DETERMINERS.all()} | {"three": NUMERALS[3], "-": BARE}

# "the old man" -> nominative, accusative, dative, genitive; "-" is no determiner.
SINGULAR = {
    "the old man": "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes",
    "the old woman": "die alte Frau, die alte Frau, der alten Frau, der alten Frau",
    "the big house": "das große Haus, das große Haus, dem großen Haus, des großen Hauses",
    "a old man": "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes",
    "a old woman": "eine alte Frau, eine alte Frau, einer alten Frau, einer alten Frau",
    "a big house": "ein großes Haus, ein großes Haus, einem großen Haus, eines großen Hauses",
    "this high tower": "dieser hohe Turm, diesen hohen Turm, diesem hohen Turm, "
    "dieses hohen Turmes",
    "every new picture": "jedes neue Bild, jedes neue Bild, jedem neuen Bild, jedes neuen Bildes",
    "my young student": "mein junger Student, meinen jungen Studenten, meinem jungen Studenten, "
    "meines jungen Studenten",
    "our dark room": "unser dunkles Zimmer, unser dunkles Zimmer, unserem dunklen Zimmer, "
    "unseres dunklen Zimmers",
    "no expensive bus": "kein teurer Bus, keinen teuren Bus, keinem teuren Bus, "
    "keines teuren Busses",
    "- cold coffee": "kalter Kaffee, kalten Kaffee, kaltem Kaffee, kalten Kaffees",
    "- cold milk": "kalte Milch, kalte Milch, kalter Milch, kalter Milch",
    "- fresh bread": "frisches Brot, frisches Brot, frischem Brot, frischen Brotes",
}
PLURAL = {
    "the old man": "die alten Männer, die alten Männer, den alten Männern, der alten Männer",
    "- old house": "alte Häuser, alte Häuser, alten Häusern, alter Häuser",
    "many good book": "viele gute Bücher, viele gute Bücher, vielen guten Büchern, "
    "vieler guter Bücher",
    "some red flower": "einige rote Blumen, einige rote Blumen, einigen roten Blumen, "
    "einiger roter Blumen",
    "all good book": "alle guten Bücher, alle guten Bücher, allen guten Büchern, "
    "aller guten Bücher",
    "both old car": "beide alten Autos, beide alten Autos, beiden alten Autos, beider alten Autos",
    "his small child": "seine kleinen Kinder, seine kleinen Kinder, seinen kleinen Kindern, "
    "seiner kleinen Kinder",
    "no lazy pilot": "keine faulen Piloten, keine faulen Piloten, keinen faulen Piloten, "
    "keiner faulen Piloten",
    "three young dog": "drei junge Hunde, drei junge Hunde, drei jungen Hunden, drei junger Hunde",
}


def paradigm(words: str, plural: bool) -> str:
    determiner, modifier, name = words.split()
    phrase = NounPhrase(16, NOUN[name], DETERMINER[determiner], plural, ADJECTIVE[modifier])
    return ", ".join(" ".join(w.text for w in phrase.german(case)) for case in german.CASES)


@pytest.mark.parametrize("words", SINGULAR)
def test_singular_noun_phrases(words):
    assert paradigm(words, plural=False) == SINGULAR[words]


@pytest.mark.parametrize("words", PLURAL)
def test_plural_noun_phrases(words):
    assert paradigm(words, plural=True) == PLURAL[words]


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


# ich, er, wir; then the same in the past; participle; infinitive with zu
VERBS_BY_HAND = {
    "kaufen": "kaufe kauft kaufen kaufte kaufte kauften gekauft -",
    "arbeiten": "arbeite arbeitet arbeiten arbeitete arbeitete arbeiteten gearbeitet -",
    "öffnen": "öffne öffnet öffnen öffnete öffnete öffneten geöffnet -",
    "zeichnen": "zeichne zeichnet zeichnen zeichnete zeichnete zeichneten gezeichnet -",
    "lernen": "lerne lernt lernen lernte lernte lernten gelernt -",
    "tanzen": "tanze tanzt tanzen tanzte tanzte tanzten getanzt -",
    "spielen": "spiele spielt spielen spielte spielte spielten gespielt -",
    "lächeln": "lächle lächelt lächeln lächelte lächelte lächelten gelächelt -",
    "ändern": "ändere ändert ändern änderte änderte änderten geändert -",
    "reparieren": "repariere repariert reparieren reparierte reparierte reparierten repariert -",
    "besuchen": "besuche besucht besuchen besuchte besuchte besuchten besucht -",
    "übersetzen": "übersetze übersetzt übersetzen übersetzte übersetzte übersetzten übersetzt -",
    "lesen": "lese liest lesen las las lasen gelesen -",
    "waschen": "wasche wäscht waschen wusch wusch wuschen gewaschen -",
    "denken": "denke denkt denken dachte dachte dachten gedacht -",
    "wissen": "weiß weiß wissen wusste wusste wussten gewusst -",
    "anrufen": "rufe ruft rufen rief rief riefen angerufen anzurufen",
    "vorbereiten": "bereite bereitet bereiten bereitete bereitete bereiteten vorbereitet "
    "vorzubereiten",
    "anprobieren": "probiere probiert probieren probierte probierte probierten anprobiert "
    "anzuprobieren",
    "aufwachen": "wache wacht wachen wachte wachte wachten aufgewacht aufzuwachen",
}


@pytest.mark.parametrize("infinitive", VERBS_BY_HAND)
def test_german_verbs(infinitive):
    verb = VERB[infinitive]
    forms = [verb.finite(past, who) for past in (False, True) for who in ("1s", "3s", "3p")]
    forms += [verb.participle, verb.zu_infinitive or "-"]
    assert " ".join(forms) == VERBS_BY_HAND[infinitive]


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
