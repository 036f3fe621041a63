"""The constructions of one clause: each draws its words and writes the sentence in both languages.

A construction is a function from a `Draw` to a `Sentence`, registered by its decorator with one line that says how
German differs. To add one is to write such a function.
"""

from collections.abc import Callable
from typing import NamedTuple

from transformer_jax.text import lexicon, phrases
from transformer_jax.text import lexicon_words as words
from transformer_jax.text.clauses import Clause
from transformer_jax.text.drawing import SIMPLE_FRAMES, Draw, Retry, same_noun, tense_of
from transformer_jax.text.lexicon_entries import Determiner, Fixed
from transformer_jax.text.phrases import Given, Nominal, NounPhrase, Phrase, Word


class Sentence(NamedTuple):
    """Words of both sides and the mark that ends them."""

    en: list[Word]
    de: list[Word]
    mark: str = "."


Construction = Callable[[Draw], Sentence]


class Entry(NamedTuple):
    """A registered construction."""

    description: str
    function: Construction
    weight: int  # how often it is drawn, beside the others' 1


REGISTRY: dict[str, Entry] = {}


def construction(description: str, weight: int = 1) -> Callable[[Construction], Construction]:
    """Registers a construction under its function's name."""

    def register(function: Construction) -> Construction:
        REGISTRY[function.__name__] = Entry(description, function, weight)
        return function

    return register


SEPARABLE = "intransitive transitive dative ditransitive transfer prepositional reflexive"
# Activities that one does at a place worth naming.
AT_PLACES = frozenset(
    "sleep,work,dance,sing,eat,drink,read,greet,hug,kiss,wait,photograph,rest,learn,talk,observe,look for,cry,laugh".split(
        ","
    )
)
INSIDE = tuple(p for p in words.SOMEWHERE if p.de == "in")
AT = tuple(p for p in words.SOMEWHERE if p.de == "an")


def separable_clause(draw: Draw, time: str) -> Clause:
    """A clause whose verb has a separable prefix."""
    verb = draw.verb(time, SEPARABLE, separable=True)
    return draw.complete(verb, draw.subject(verb), time)


@construction("articles, adjectives and nouns agree in gender, number and case")
def agreement(draw: Draw) -> Sentence:
    return told(draw, draw.one(SIMPLE_TIMES), SIMPLE_FRAMES, pronouns=0.1)


SIMPLE_TIMES = ("past", "now", "habit")


def told(draw: Draw, time: str, frames: str, pronouns: float = 0.25) -> Sentence:
    """A plain statement; what is done as a habit is done often, always or never."""
    clause = draw.clause(time, frames, pronouns)
    if time == "habit":
        add_frequency(draw, clause)
    return Sentence(clause.english(), clause.german())


def add_frequency(draw: Draw, clause: Clause) -> None:
    """Says how often; not of every, all or both, which would have two readings."""
    if any(quantified(n) for n in (clause.subject, clause.accusative, clause.dative)):
        raise Retry
    clause.frequency = draw.fixed(draw.one(words.FREQUENCIES))


@construction("verb second: a fronted adverbial of time moves the subject behind the verb")
def fronted_time(draw: Draw) -> Sentence:
    time = draw.one(("past", "past", "now", "habit", "future"))
    clause = draw.clause(time)
    if clause.tense == "present" and time == "now":
        raise Retry
    clause.time = draw.when(time)
    return Sentence(
        clause.time.en + english_without_time(clause), clause.german(front=clause.time.de)
    )


def english_without_time(clause: Clause, question: bool = False) -> list[Word]:
    """The English clause without its adverbial of time, which stands elsewhere."""
    time, clause.time = clause.time, phrases.NOTHING
    text = clause.english(question)
    clause.time = time
    return text


@construction("an adverbial of time stands before the object, not at the end")
def time_inside(draw: Draw) -> Sentence:
    time = draw.one(("past", "future", "habit"))
    clause = draw.clause(time)
    clause.time = draw.when(time)
    return Sentence(clause.english(), clause.german())


@construction("verb second after a fronted place; in, an and auf with the dative")
def fronted_place(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    verb = draw.verb(time, among=AT_PLACES)
    clause = draw.complete(verb, draw.subject(verb), time)
    place = draw.place(draw.one((INSIDE, INSIDE, AT)))
    if draw.chance(0.5):
        return Sentence(place.en + clause.english(), clause.german(front=place.de))
    clause.place = place
    return Sentence(clause.english(), clause.german())


@construction("verb second after a comment on the sentence; frequency before the object")
def comment(draw: Draw) -> Sentence:
    if draw.chance(0.5):
        clause = draw.clause("habit")
        add_frequency(draw, clause)
        return Sentence(clause.english(), clause.german())
    entry = draw.one(words.COMMENTS)
    clause = draw.clause("past")
    front = draw.fixed(entry)
    return Sentence(front.en + clause.english(), clause.german(front=front.de))


@construction("perfect: haben or sein, and the participle at the end")
def perfect(draw: Draw) -> Sentence:
    clause = draw.clause("perfect")
    if draw.chance(0.25):
        clause.frequency = draw.fixed(words.ALREADY)
    return Sentence(clause.english(), clause.german())


@construction("future: werden, and the infinitive at the end")
def future(draw: Draw) -> Sentence:
    clause = draw.clause("future")
    if draw.chance(0.6):
        clause.time = draw.when("future")
    return Sentence(clause.english(), clause.german())


@construction("modal verbs, and the infinitive at the end")
def modal(draw: Draw) -> Sentence:
    clause = draw.clause("modal")
    clause.modal = draw.one(words.MODALS)
    if clause.modal is not words.SHOULD and draw.chance(0.35):
        clause.tense = "past"
        clause.time = draw.when("past")
        return Sentence(
            clause.time.en + english_without_time(clause), clause.german(front=clause.time.de)
        )
    if draw.chance(0.25):
        negate(clause)
    return Sentence(clause.english(), clause.german())


@construction("separable verbs: the prefix ends the main clause")
def separable(draw: Draw) -> Sentence:
    time = draw.one(SIMPLE_TIMES)
    clause = separable_clause(draw, time)
    if time == "habit":
        add_frequency(draw, clause)
    return Sentence(clause.english(), clause.german())


@construction("nicht: behind a definite object, before the complement and the verb's second part")
def negation_nicht(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect", "future")))
    negate(clause)
    return Sentence(clause.english(), clause.german())


def negate(clause: Clause) -> None:
    """Negates the clause by nicht, where that is what German would say."""
    nominals = (clause.subject, clause.accusative, clause.dative)
    if any(n and not n.definite for n in nominals[1:]) or any(quantified(n) for n in nominals):
        raise Retry
    clause.negation = "nicht"


def quantified(nominal: Nominal | None) -> bool:
    """Every, all, both, no: where a negation would have two readings."""
    return isinstance(nominal, NounPhrase) and nominal.determiner in (
        words.EVERY,
        words.ALL,
        words.BOTH,
        words.NO,
    )


NOT_A = Determiner("a", "", "kein", "ein", True, True, False)


@construction("kein: the negation of an indefinite object")
def negation_kein(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "future"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    noun = draw.noun("object", verb, lambda n: not n.proper and "kin" not in n.kinds)
    draw.combine("object", verb, noun)
    plural = not noun.mass and draw.chance(0.4)
    determiner = Determiner("", "", "kein", "ein", True, True, False) if noun.mass else NOT_A
    if same_noun(subject, NounPhrase(0, noun)) or quantified(subject):
        raise Retry
    clause = Clause(draw.key(), subject, verb, tense_of(time, verb))
    clause.accusative = draw.noun_phrase(noun, determiner, plural=plural)
    clause.negation = "kein"
    return Sentence(clause.english(), clause.german())


@construction("kein before the subject: no student = kein Student")
def no_subject(draw: Draw) -> Sentence:
    time = draw.one(("past", "perfect", "habit"))
    verb = draw.verb(time)
    noun = draw.noun(
        "subject", verb, lambda n: not n.proper and "kin" not in n.kinds and not n.mass
    )
    draw.combine("subject", verb, noun)
    subject = draw.noun_phrase(noun, words.NO, plural=False)
    clause = draw.complete(verb, subject, time)
    return Sentence(clause.english(), clause.german())


# The verbs that begin a question themselves, few enough that training shows their capitalised forms.
ASKED = frozenset("know love need understand visit buy drink eat sleep work help call".split())


@construction("yes-no questions put the verb first and know no do")
def question(draw: Draw) -> Sentence:
    kind = draw.one(("perfect", "modal", "habit", "now", "future"))
    clause = draw.clause(kind)
    if kind in ("habit", "now") and clause.verb.en.whole not in ASKED:
        raise Retry
    if kind == "modal":
        clause.modal = draw.one(words.MODALS)
    if kind == "habit":
        clause.time = draw.when(kind)
    return Sentence(clause.english(question=True), clause.german("first"), "?")


@construction("wer, wen, wem and was ask for a case")
def who(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    key = draw.key()
    asked = draw.one(("subject", "object"))
    if asked == "subject":
        verb = draw.verb(time)
        if not any(kind in verb.subject.split() for kind in ("person", "adult")):
            raise Retry
        subject = Given(key, [Word("who", (key,))], {"nom": [Word("wer", (key,))]})
        clause = draw.complete(verb, subject, time)
        return Sentence(clause.english(), clause.german(), "?")
    verb = draw.verb(time, "transitive dative")
    people = "person" in verb.object.split()
    if not people and any("person" in n.kinds for n in lexicon.nouns(verb.object)):
        raise Retry
    clause = Clause(draw.key(), draw.subject(verb), verb, tense_of(time, verb))
    if verb.frame == "dative":
        pair = ("whom", "wem")
    else:
        pair = ("whom", "wen") if people else ("what", "was")
    return wh_question(clause, Phrase([Word(pair[0], (key,))], [Word(pair[1], (key,))]))


def wh_question(clause: Clause, front: Phrase) -> Sentence:
    """A question with the asked phrase in front."""
    return Sentence(front.en + clause.english(question=True), clause.german(front=front.de), "?")


@construction("welcher and wie viele agree with their noun and stand in front")
def which(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    clause = Clause(draw.key(), draw.subject(verb), verb, tense_of(time, verb))
    noun = draw.noun("object", verb, lambda n: not n.proper and "kin" not in n.kinds and not n.mass)
    if same_noun(clause.subject, NounPhrase(0, noun)):
        raise Retry
    draw.combine("object", verb, noun)
    if draw.chance(0.4):
        how = draw.key()
        nominal = draw.noun_phrase(noun, words.BARE, plural=True)
        many = Phrase(
            [Word("how", (how,)), Word("many", (how + 1,))],
            [Word("wie", (how,)), Word("viele", (how + 1,))],
        )
        front = many + Phrase(nominal.english(), nominal.german("acc"))
    else:
        nominal = draw.noun_phrase(noun, words.WHICH)
        front = Phrase(nominal.english(), nominal.german("acc"))
    return wh_question(clause, front)


WH_ADVERBS = (
    Fixed("why", "warum"),
    Fixed("when", "wann"),
    Fixed("where", "wo"),
    Fixed("how", "wie"),
)


@construction("wo, wann and warum stand in front, the verb second")
def where(draw: Draw) -> Sentence:
    time = draw.one(("past", "perfect", "now", "future"))
    entry = draw.one(WH_ADVERBS[:3])
    if (entry.en == "when") == (time in ("perfect", "now")):
        raise Retry
    clause = draw.clause(time)
    if entry.en == "where" and (clause.verb.en.whole not in AT_PLACES):
        raise Retry
    return wh_question(clause, draw.fixed(entry))


@construction("some verbs want the dative where English has a plain object: helfen, danken, folgen")
def dative_verb(draw: Draw) -> Sentence:
    return told(draw, draw.one((*SIMPLE_TIMES, "perfect")), "dative")


@construction("the receiver stands in the dative, before the object")
def receiver(draw: Draw) -> Sentence:
    return told(draw, draw.one((*SIMPLE_TIMES, "perfect", "future")), "ditransitive transfer")


@construction("where something is: two-way prepositions with the dative")
def location(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now")), "location", pronouns=0.15)
    if draw.chance(0.15):
        negate(clause)
    return Sentence(clause.english(), clause.german())


@construction("where something goes: the same prepositions with the accusative")
def placement(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect")), "placement")
    return Sentence(clause.english(), clause.german())


@construction("motion: into with the accusative, to with zu and the dative; perfect with sein")
def motion(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect", "future")), "motion")
    if draw.chance(0.3) and clause.tense == "past":
        clause.time = draw.when("past")
    return Sentence(clause.english(), clause.german())
