"""The kinds of lexical entry; each entry is a line in lexicon_{nouns,verbs,words}.py.

Who can do what with whom is said by *kinds*: a noun has some ("person job"), and verbs, adjectives
and prepositions name those that they go with. Where kinds are named, a noun's own English word may
stand too, and "-word" or "-kind" takes some away: "food -soup".
"""

import dataclasses

from transformer_jax.grammar import english, german


@dataclasses.dataclass(frozen=True, eq=False)
class Noun:
    """A noun; without a German plural it is a mass noun (or a proper name)."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str
    kinds: frozenset[str]
    weak: bool = False  # den Studenten, des Studenten
    genitive: str = ""
    proper: bool = False
    neutral: bool = False  # das Kind, das Mädchen: no pronoun that both languages would agree on

    @property
    def mass(self) -> bool:
        """Has no plural and takes no indefinite article."""
        return not self.de_plural and not self.proper

    def german(self, case: str, plural: bool) -> str:
        """The noun's form: (des) Hauses, (den) Häusern."""
        if plural:
            return german.dative_plural(self.de_plural) if case == "dat" else self.de_plural
        if self.weak and case != "nom":
            return self.de_plural
        if case == "gen":
            return self.genitive or german.genitive(self.de, self.gender)
        return self.de


def noun(en: str, de: str, plural: str, kinds: str, **more: bool | str) -> Noun:
    """noun("man/men", "der Mann", "Männer", "person"); an empty plural makes a mass noun."""
    singular, _, en_plural = en.partition("/")
    article, _, german_noun = de.partition(" ")
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    return Noun(
        en=singular,
        en_plural=en_plural or english.plural(singular),
        de=german_noun,
        de_plural=plural,
        gender=gender,
        kinds=frozenset(kinds.split()),
        **more,  # type: ignore[arg-type]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
    """A verb with its frame (see lexicon_verbs.py) and the kinds of noun that it goes with."""

    frame: str
    en: english.Verb
    de: german.Verb
    subject: str
    object: str  # of the frame's noun: the accusative, dative or prepositional one
    dative: str = "person"  # the receiver of a ditransitive verb
    aspect: str = (
        "activity"  # "state" (no progressive), "event" (no present) or "routine" (no "now")
    )
    reflexive: bool = False
    preposition: tuple[str, str, str] = ("", "", "")  # English, German, case

    @property
    def name(self) -> str:
        """What names the verb in held-out combinations: its English and German dictionary forms."""
        return f"{self.en.whole}={self.de.whole}"


@dataclasses.dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective with its comparison in both languages."""

    en: str
    en_comparative: str
    en_superlative: str
    de: str
    de_comparative: str
    de_superlative: str  # the stem: ältest
    kinds: str


def adjective(en: str, de: str, kinds: str) -> Adjective:
    """adjective("old", "alt älter ältest", "person"); regular comparison may be left out."""
    en, *en_rest = en.split()
    de, *de_rest = de.split()
    if not en_rest:
        en_rest = list(english.comparison(en))
    if not de_rest:
        stem = de.removesuffix("e")
        hard = de.endswith(("d", "t", "s", "ß", "sch", "z", "e")) and not de.endswith(
            ("end", "isch")
        )
        de_rest = [stem + "er", stem + ("est" if hard else "st")]
    return Adjective(en, en_rest[0], en_rest[1], de, de_rest[0], de_rest[1], kinds)


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner: its English words, and what the German one shows of case and gender."""

    en: str  # before a singular; "" where there is none
    en_plural: str
    de: str  # the stem
    pattern: str  # "definite", "der", "ein", "fixed" or "" (no word)
    singular: bool
    plural: bool
    definite: bool

    def declension(self, plural: bool) -> str:
        """The adjective's declension after this determiner."""
        if self.pattern in ("", "fixed") or self.de in ("viel", "einig", "mehrer", "wenig"):
            return "strong"
        return "mixed" if self.pattern == "ein" else "weak"


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """Words that never change, and their alignment: "in the evening", "am Abend", "0-0 1-0 2-1"."""

    en: str
    de: str
    alignment: str = ""  # pairs of positions, English-German; left out: word by word

    def links(self) -> list[tuple[int, int]]:
        """The alignment as pairs of positions."""
        if self.alignment:
            pairs = (pair.split("-") for pair in self.alignment.split())
            return [(int(source), int(target)) for source, target in pairs]
        sources, targets = len(self.en.split()), len(self.de.split())
        if 1 in (sources, targets):
            return [(i, j) for i in range(sources) for j in range(targets)]
        return [(i, i) for i in range(sources)]


@dataclasses.dataclass(frozen=True, eq=False)
class Preposition:
    """A preposition with its case; two-way ones stand once for each case."""

    en: str
    de: str
    case: str
    kinds: str  # of its noun


@dataclasses.dataclass(frozen=True, eq=False)
class Modal:
    """A modal verb; the English negation of one may be another word (must not = darf nicht)."""

    de: str
    present: dict[str, str]  # English, by person
    past: dict[str, str]
    negative_present: dict[str, str]
    negative_past: dict[str, str]
