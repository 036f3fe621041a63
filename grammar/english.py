"""English inflection by rule: verb forms, plurals, comparison; irregular forms are given."""

import dataclasses

# Verbs that double their last consonant: stopping, planned.
DOUBLING = frozenset("beg begin forget get hug nod plan rub run sit stop swim".split())
VOWELS = "aeiou"


def _s_form(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do", "tomato", "potato"):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def plural(noun: str) -> str:
    """The regular plural: churches, stories, cars."""
    return _s_form(noun)


def possessive(word: str, plural: bool) -> str:
    """the teacher's, the boss's, the teachers', the children's."""
    return word + ("'" if plural and word.endswith("s") else "'s")


def article(following: str) -> str:
    """a or an, by the sound of the next word."""
    silent_h = following.startswith(("honest", "hour"))
    glide = following.startswith(("uni", "use", "Euro", "one"))
    return "an" if silent_h or (following[0].lower() in VOWELS and not glide) else "a"


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb's forms; `particle` follows it: turn on, look for."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    particle: str = ""
    movable: bool = False  # the particle follows a pronoun: turn it on, but look for it

    @property
    def ambiguous(self) -> bool:
        """Whether present and past look the same, as in "they read"."""
        return self.base == self.past

    @property
    def whole(self) -> str:
        """The dictionary form: turn on."""
        return f"{self.base} {self.particle}".strip()


def verb(spec: str) -> Verb:
    """Reads "buy bought bought", "walk", "wake|up woke woken" (movable particle) or "look+for"."""
    base, *parts = spec.split()
    if len(parts) not in (0, 2):
        raise ValueError(f'"{spec}" is not an infinitive alone, or with its past and participle')
    movable = "|" in base
    base, _, particle = base.replace("+", "|").partition("|")
    if parts:
        past, participle = parts
    else:
        stem = base + base[-1] if base in DOUBLING else base
        if base.endswith("y") and base[-2] not in VOWELS:
            stem = base[:-1] + "i"
        past = participle = stem + ("d" if stem.endswith("e") else "ed")
    if base == "be":
        return Verb("be", "is", "was", "been", "being")
    if base.endswith("ie"):
        gerund = base[:-2] + "ying"
    elif base in DOUBLING:
        gerund = base + base[-1] + "ing"
    else:
        gerund = (base[:-1] if base.endswith("e") and base[-2] not in "eo" else base) + "ing"
    return Verb(base, _s_form(base), past, participle, gerund, particle.replace("_", " "), movable)


BE = {  # by (past, person)
    (False, "1s"): "am",
    (False, "3s"): "is",
    (False, "1p"): "are",
    (False, "3p"): "are",
    (True, "1s"): "was",
    (True, "3s"): "was",
    (True, "1p"): "were",
    (True, "3p"): "were",
}
PERSONS = ("1s", "3s", "1p", "3p")
HAVE = {person: "has" if person == "3s" else "have" for person in PERSONS}


def by_person(spec: str, past: bool) -> dict[str, str]:
    """The forms of "can", of "want to / wants to", or of "be allowed to", whose be is inflected."""
    others, _, third = spec.partition(" / ")
    forms = {person: third if third and person == "3s" else others for person in PERSONS}
    first, _, rest = others.partition(" ")
    if first == "be":
        forms = {person: f"{BE[past, person]} {rest}" for person in PERSONS}
    return forms


def comparison(adjective: str) -> tuple[str, str]:
    """(taller, tallest), or (more careful, most careful)."""
    groups = sum(
        c in VOWELS and (i == 0 or adjective[i - 1] not in VOWELS) for i, c in enumerate(adjective)
    )
    groups -= adjective.endswith("e") and groups > 1
    if adjective.endswith("y") and groups <= 2:
        return adjective[:-1] + "ier", adjective[:-1] + "iest"
    if groups > 1:
        return f"more {adjective}", f"most {adjective}"
    stem = adjective.removesuffix("e")
    if (
        stem == adjective
        and stem[-2] in VOWELS
        and stem[-3] not in VOWELS
        and stem[-1] not in "wxy"
    ):
        stem += stem[-1]  # sad, sadder
    return stem + "er", stem + "est"
