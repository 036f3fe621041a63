"""The kinds of lexical entry, and how each is made from the cells of a line of the lexicon.

*Kinds* say who can do what with whom: a noun has some ("person job"), and verbs, adjectives and
prepositions name the kinds that they go with. Such a specification may also name a noun by its
English word, and "-word" or "-kind" excludes: "food -soup".

The functions that make an entry raise ValueError, with what they expect, for malformed cells.
"""

import dataclasses
from collections.abc import Collection

from grammar import english, german

GENDERS = {"der": "m", "die": "f", "das": "n"}
# A frame says what a verb takes beside its subject. Each, with the columns of verbs.tsv it needs.
FRAMES = {
    "intransitive": (),
    "transitive": ("object",),
    "dative": ("object",),
    "ditransitive": ("object",),
    "transfer": ("object",),
    "prepositional": ("object", "preposition"),
    "reflexive": (),
    "reflexive prepositional": ("object", "preposition"),
    "location": (),
    "placement": ("object",),
    "motion": (),
    "clausal": (),
    "control": (),
    "interrogative": (),
    "measure": (),
}
# state: no progressive; event: not in the present; routine: not with "now".
ASPECTS = ("activity", "state", "event", "routine")
ENDINGS = ("definite", "der", "ein", "fixed", "")


def one_of(value: str, allowed: Collection[str], what: str) -> str:
    """The value. Raises ValueError, naming `what`, if it is not allowed."""
    if value not in allowed:
        raise ValueError(f'{what} "{value}" is not one of {", ".join(filter(None, allowed))}')
    return value


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
    genitive: str = ""  # only if it is irregular
    proper: bool = False
    neutral: bool = False  # das Kind, das Mädchen: no pronoun is right in both languages

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


def noun(en: str, de: str, plural: str, kinds: str, marks: str = "", genitive: str = "") -> Noun:
    """noun("man/men", "der Mann", "Männer", "person"); an empty plural makes a mass noun.

    The marks are "weak", "name" and "neutral".
    """
    singular, _, en_plural = en.partition("/")
    article, _, german_noun = de.partition(" ")
    if article not in GENDERS or not german_noun or " " in german_noun:
        raise ValueError(f'"{de}" is not a noun after der, die or das')
    marked = {one_of(mark, ("weak", "name", "neutral"), "the mark") for mark in marks.split()}
    return Noun(
        en=singular,
        en_plural=en_plural or english.plural(singular),
        de=german_noun,
        de_plural=plural,
        gender=GENDERS[article],
        kinds=frozenset(kinds.split()),
        weak="weak" in marked,
        genitive=genitive,
        proper="name" in marked,
        neutral="neutral" in marked,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
    """A verb with its frame, which is a key of FRAMES, and the nouns that it goes with."""

    frame: str
    en: english.Verb
    de: german.Verb
    subject: str  # specifies its nouns
    object: str = ""  # the same; the object is accusative, dative or prepositional, by the frame
    preposition: tuple[str, str, str] = ("", "", "")  # English ("-": none), German, case
    aspect: str = "activity"  # one of ASPECTS

    @property
    def reflexive(self) -> bool:
        """Takes a reflexive pronoun in German: sich erinnern."""
        return self.frame.startswith("reflexive")

    @property
    def name(self) -> str:
        """The English and German dictionary forms, which name it in held-out combinations."""
        return f"{self.en.whole}={self.de.whole}"


def verb(
    frame: str,
    en: str,
    de: str,
    subject: str,
    object: str = "",
    preposition: str = "",
    auxiliary: str = "",
    aspect: str = "",
) -> Verb:
    """verb("motion", "go went gone", "gehen geht ging gegangen", "person", auxiliary="sein").

    `en` and `de` are read by `english.verb` and `german.verb`; a preposition is "for auf acc".
    """
    needed = FRAMES[one_of(frame, FRAMES, "the frame")]
    for column, cell in (("object", object), ("preposition", preposition)):
        if bool(cell) != (column in needed):
            has = "has no" if cell else "needs an" if column == "object" else "needs a"
            raise ValueError(f"a verb of the frame {frame} {has} {column}")
    parts = preposition.split()
    if parts and not (len(parts) == 3 and parts[2] in german.CASES):
        raise ValueError(f'"{preposition}" is not like "for auf acc": English, German, case')
    return Verb(
        frame,
        english.verb(en),
        german.verb(de, one_of(auxiliary or "haben", ("haben", "sein"), "the auxiliary")),
        subject,
        object,
        (parts[0], parts[1], parts[2]) if parts else ("", "", ""),
        one_of(aspect or "activity", ASPECTS, "the aspect"),
    )


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
    marks: frozenset[str]  # of "compared", "good", "bad" and "ordinal"
    opposites: frozenset[str]  # English adjectives that are never contrasted with it

    @property
    def ordinal(self) -> bool:
        """first, last: goes with any noun, and is not compared."""
        return "ordinal" in self.marks


def adjective(en: str, de: str, kinds: str, marks: str = "", opposites: str = "") -> Adjective:
    """adjective("old", "alt älter ältest", "person"); regular comparison may be left out."""
    for forms in (en, de):
        if len(forms.split()) not in (1, 3):
            raise ValueError(
                f'"{forms}" is not an adjective alone, or with its comparative and superlative'
            )
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
    known = ("compared", "good", "bad", "ordinal")
    marked = frozenset(one_of(mark, known, "the mark") for mark in marks.split())
    if bool(kinds) == ("ordinal" in marked):
        raise ValueError("an adjective needs kinds, unless it is an ordinal, which has none")
    return Adjective(
        en,
        en_rest[0],
        en_rest[1],
        de,
        de_rest[0],
        de_rest[1],
        kinds,
        marked,
        frozenset(opposites.split()),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner in English, and what its German form shows of case and gender."""

    en: str  # before a singular; empty if there is no such word
    en_plural: str
    de: str  # the stem
    pattern: str  # one of ENDINGS; "fixed" is a number; "": there is no determiner
    definite: bool

    def declension(self, plural: bool) -> str:
        """The adjective's declension after this determiner."""
        if self.pattern in ("", "fixed") or self.de in ("viel", "einig", "mehrer", "wenig"):
            return "strong"
        return "mixed" if self.pattern == "ein" else "weak"


def determiner(en: str, en_plural: str, de: str, endings: str, definite: str) -> Determiner:
    """determiner("this", "these", "dies", "der", "yes")."""
    one_of(endings, ENDINGS, "the ending")
    one_of(definite, ("yes", "no"), "definite")
    return Determiner(en, en_plural, de, endings, definite == "yes")


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """Words that never change, and their alignment: "in the evening", "am Abend", "0-0 1-0 2-1"."""

    en: str
    de: str
    alignment: str = ""  # pairs of positions, English-German; empty: see `links`

    def links(self) -> list[tuple[int, int]]:
        """The alignment as pairs of positions.

        Without one, every word goes with every word if one side is a single word; otherwise the
        first word goes with the first, and so on.
        """
        if self.alignment:
            pairs = (pair.split("-") for pair in self.alignment.split())
            return [(int(source), int(target)) for source, target in pairs]
        sources, targets = len(self.en.split()), len(self.de.split())
        if 1 in (sources, targets):
            return [(i, j) for i in range(sources) for j in range(targets)]
        return [(i, i) for i in range(sources)]


def fixed(en: str, de: str, alignment: str = "") -> Fixed:
    """fixed("in summer", "im Sommer"), whose alignment fits its words."""
    entry = Fixed(en, de, alignment)
    sources, targets = set(range(len(en.split()))), set(range(len(de.split())))
    try:
        linked = [set(side) for side in zip(*entry.links(), strict=True)]
    except ValueError:
        linked = []
    if linked != [sources, targets]:
        raise ValueError(
            f'the alignment "{alignment}" does not link all words of "{en}" and "{de}"; it is '
            'pairs of positions from 0, English-German, such as "0-0 1-0 2-1"'
        )
    return entry


@dataclasses.dataclass(frozen=True, eq=False)
class Preposition:
    """A preposition with one case; a two-way preposition has an entry for each of its cases."""

    en: str
    de: str
    case: str
    kinds: str  # of its noun


def preposition(en: str, de: str, case: str, kinds: str) -> Preposition:
    """preposition("under", "unter", "dat", "table bed")."""
    return Preposition(en, de, one_of(case, german.CASES[1:], "the case"), kinds)


@dataclasses.dataclass(frozen=True, eq=False)
class Modal:
    """A modal verb; the English negation of one may be another word (must not = darf nicht)."""

    de: str
    present: dict[str, str]  # English, by person
    past: dict[str, str]
    negative_present: dict[str, str]
    negative_past: dict[str, str]


def modal(de: str, present: str, past: str, negative_present: str, negative_past: str) -> Modal:
    """modal("müssen", "must", "had to", "do not have to / does not have to", ...)."""
    if de not in german.IRREGULAR:
        raise ValueError(f'german.py has no forms of the modal verb "{de}"')
    return Modal(
        de,
        english.by_person(present, past=False),
        english.by_person(past, past=True),
        english.by_person(negative_present, past=False),
        english.by_person(negative_past, past=True),
    )
