"""German inflection: articles, adjective endings, noun cases and verb forms from a few tables.

Cases are "nom", "acc", "dat", "gen"; a *column* is a gender "m", "f", "n", or "p" for the plural.
Persons are "1s", "3s", "1p", "3p".
"""

import dataclasses
from functools import cache

CASES = ("nom", "acc", "dat", "gen")
COLUMNS = ("m", "f", "n", "p")


def _table(rows: str) -> dict[tuple[str, str], str]:
    """A table with a row for each case and a column for each of COLUMNS; "-" is no ending."""
    return {
        (case, column): "" if ending == "-" else ending
        for case, row in zip(CASES, rows.strip().splitlines(), strict=True)
        for column, ending in zip(COLUMNS, row.split(), strict=True)
    }


DEFINITE = _table("""
    der die das die
    den die das die
    dem der dem den
    des der des der
""")
# dies-er, jed-er, welch-er, all-e, viel-e ...
DER_ENDINGS = _table("""
    er  e   es  e
    en  e   es  e
    em  er  em  en
    es  er  es  er
""")
# ein, kein, mein, sein, ihr, unser
EIN_ENDINGS = _table("""
    -   e   -   e
    en  e   -   e
    em  er  em  en
    es  er  es  er
""")
# The adjective's ending depends on what the determiner before it shows.
ADJECTIVE_ENDINGS = {
    "weak": _table("""
    e   e   e   en
    en  e   e   en
    en  en  en  en
    en  en  en  en
"""),
    "mixed": _table("""
    er  e   es  en
    en  e   es  en
    en  en  en  en
    en  en  en  en
"""),
    "strong": _table("""
    er  e   es  e
    en  e   es  e
    em  er  em  en
    en  er  en  er
"""),
}
# Like the definite article, except for the genitive and the dative plural.
RELATIVE = DEFINITE | {
    ("dat", "p"): "denen",
    ("gen", "m"): "dessen",
    ("gen", "n"): "dessen",
    ("gen", "f"): "deren",
    ("gen", "p"): "deren",
}
# Personal pronouns by person, and for "3s" by gender.
PRONOUNS = {
    "1s": {"nom": "ich", "acc": "mich", "dat": "mir"},
    "1p": {"nom": "wir", "acc": "uns", "dat": "uns"},
    "3sm": {"nom": "er", "acc": "ihn", "dat": "ihm"},
    "3sf": {"nom": "sie", "acc": "sie", "dat": "ihr"},
    "3sn": {"nom": "es", "acc": "es", "dat": "ihm"},
    "3p": {"nom": "sie", "acc": "sie", "dat": "ihnen"},
}
REFLEXIVES = {
    "1s": {"acc": "mich", "dat": "mir"},
    "1p": {"acc": "uns", "dat": "uns"},
    "3s": {"acc": "sich", "dat": "sich"},
    "3p": {"acc": "sich", "dat": "sich"},
}
# Contracted if the article is unstressed, and a plain "the" always is.
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}
VOWELS = "aeiouäöüy"


def determiner(stem: str, pattern: str, case: str, column: str) -> str:
    """The form of a determiner; pattern is "definite", "der", "ein" or "fixed" (numbers)."""
    if pattern == "definite":
        return DEFINITE[case, column]
    if pattern == "fixed":
        return stem
    return stem + (DER_ENDINGS if pattern == "der" else EIN_ENDINGS)[case, column]


@cache
def attributive(stem: str, declension: str, case: str, column: str) -> str:
    """An adjective's form before its noun: alt, weak, acc, m -> alten."""
    stem = {"hoch": "hoh", "teuer": "teur", "dunkel": "dunkl"}.get(stem, stem)
    ending = ADJECTIVE_ENDINGS[declension][case, column]
    return stem + (ending[1:] if stem.endswith("e") else ending)


def syllables(word: str) -> int:
    """The number of vowel groups, which is close enough for the rules of endings."""
    word = word.lower()
    return sum(c in VOWELS and (i == 0 or word[i - 1] not in VOWELS) for i, c in enumerate(word))


def genitive(nominative: str, gender: str) -> str:
    """The genitive singular of a strong noun: des Hauses, des Mannes, des Lehrers, der Frau."""
    if gender == "f":
        return nominative
    if nominative.endswith("nis"):
        return nominative + "ses"
    if nominative.endswith(("s", "ß", "x", "z", "sch", "tz")):
        return nominative + "es"
    return nominative + (
        "es" if syllables(nominative) == 1 and nominative[-1] not in VOWELS else "s"
    )


def dative_plural(plural: str) -> str:
    """den Kindern, den Tagen, den Autos: -n unless the plural ends in -n or -s."""
    return plural if plural.endswith(("n", "s")) else plural + "n"


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb's principal parts, as in "an|rufen ruft rief angerufen"."""

    infinitive: str  # without the separable prefix
    third: str  # he, present
    past: str  # he, Präteritum
    participle: str  # whole: angerufen
    prefix: str = ""  # separable: an
    auxiliary: str = "haben"

    @property
    def whole(self) -> str:
        """The dictionary form: anrufen."""
        return self.prefix + self.infinitive

    @property
    def zu_infinitive(self) -> str:
        """anzurufen; "" if zu is a word of its own."""
        return f"{self.prefix}zu{self.infinitive}" if self.prefix else ""

    def finite(self, past: bool, person: str) -> str:
        """The finite form without its separable prefix."""
        if self.infinitive in IRREGULAR:
            return IRREGULAR[self.infinitive][past][person]
        if past:
            plural = self.past + ("n" if self.past.endswith("e") else "en")
            return plural if person in ("1p", "3p") else self.past
        if person == "3s":
            return self.third
        if person in ("1p", "3p"):
            return self.infinitive
        stem = self.infinitive.removesuffix("n").removesuffix("e")
        # ich lächle, but ich spiele
        return stem[:-2] + "le" if self.infinitive.endswith("eln") else stem + "e"


def _persons(first: str, third: str, plural: str) -> dict[str, str]:
    return {"1s": first, "3s": third, "1p": plural, "3p": plural}


# [present, past] of the auxiliaries and modals.
IRREGULAR = {
    "sein": (_persons("bin", "ist", "sind"), _persons("war", "war", "waren")),
    "haben": (_persons("habe", "hat", "haben"), _persons("hatte", "hatte", "hatten")),
    "werden": (_persons("werde", "wird", "werden"), _persons("wurde", "wurde", "wurden")),
    "können": (_persons("kann", "kann", "können"), _persons("konnte", "konnte", "konnten")),
    "müssen": (_persons("muss", "muss", "müssen"), _persons("musste", "musste", "mussten")),
    "dürfen": (_persons("darf", "darf", "dürfen"), _persons("durfte", "durfte", "durften")),
    "wollen": (_persons("will", "will", "wollen"), _persons("wollte", "wollte", "wollten")),
    # English should is advice, which German expresses by the subjunctive: sollte.
    "sollen": (_persons("sollte", "sollte", "sollten"), _persons("sollte", "sollte", "sollten")),
    "mögen": (_persons("mag", "mag", "mögen"), _persons("mochte", "mochte", "mochten")),
    "wissen": (_persons("weiß", "weiß", "wissen"), _persons("wusste", "wusste", "wussten")),
}
INSEPARABLE = ("be", "emp", "ent", "er", "ge", "miss", "ver", "zer")


def verb(spec: str, auxiliary: str = "haben") -> Verb:
    """Reads "an|rufen ruft rief angerufen", or for a regular verb "ein|kaufen"."""
    infinitive, *parts = spec.split()
    if len(parts) not in (0, 3) or not infinitive.endswith("n"):
        raise ValueError(
            f'"{spec}" is not an infinitive alone, or with its third person, past and participle'
        )
    prefix, _, infinitive = infinitive.rpartition("|")
    if parts:
        third, past, participle = parts
        return Verb(infinitive, third, past, participle, prefix, auxiliary)
    stem = infinitive.removesuffix("n").removesuffix("e")
    # arbeit-e-t, öffn-e-t, zeichn-e-t, but lern-t, wohn-t
    cluster = stem[-1] in "mn" and stem[-2] not in VOWELS + "lrhmn"
    stem_t = stem + ("et" if cluster or stem.endswith(("t", "d", "chn")) else "t")
    bare = infinitive.startswith(INSEPARABLE) or infinitive.endswith("ieren")
    return Verb(
        infinitive,
        stem_t,
        stem_t + "e",
        prefix + ("" if bare else "ge") + stem_t,
        prefix,
        auxiliary,
    )
