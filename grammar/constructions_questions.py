"""Negation and questions."""

from grammar import combinations, words
from grammar.choices import Retry
from grammar.clauses import Clause
from grammar.constructions import (
    AT_PLACES,
    NOT_A,
    NOT_ANY,
    Sentence,
    construction,
    negate,
    plain,
    quantified,
)
from grammar.drawing import GERMAN_COMMA, Draw, same_noun
from grammar.phrases import Given, NounPhrase, Phrase, Word
from grammar.times import tense_of


@construction("nicht: after a definite object, before the complement and the verb's second part")
def negation_nicht(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect", "future")))
    negate(clause)
    return plain(clause)


@construction("kein: the negation of an indefinite object")
def negation_kein(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "future"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    noun = draw.pick("object", verb, lambda n: not n.proper and "kin" not in n.kinds)
    plural = not noun.mass and draw.chance(0.4)
    determiner = NOT_ANY if noun.mass else NOT_A
    if same_noun(subject, NounPhrase(0, noun)) or quantified(subject):
        raise Retry
    clause = draw.begin(verb, subject, time)
    clause.accusative = draw.noun_phrase(noun, determiner, plural=plural)
    clause.negation = "kein"
    return plain(clause)


@construction("kein before the subject: no student = kein Student")
def no_subject(draw: Draw) -> Sentence:
    time = draw.one(("past", "perfect", "habit"))
    verb = draw.verb(time)
    noun = draw.pick("subject", verb, combinations.countable)
    subject = draw.noun_phrase(noun, words.NO, plural=False)
    clause = draw.complete(verb, subject, time)
    return plain(clause)


@construction("nicht ... sondern: not a car but a bicycle = kein Auto, sondern ein Fahrrad")
def sondern(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    nouns = [draw.noun("object", verb, combinations.countable) for _ in range(2)]
    if nouns[0] is nouns[1] or not combinations.alike(*nouns):
        raise Retry
    for noun in nouns:
        draw.combine("object", verb, noun)
    if (
        quantified(subject)
        or same_noun(subject, NounPhrase(0, nouns[0]))
        or same_noun(subject, NounPhrase(0, nouns[1]))
    ):
        raise Retry
    denied = draw.noun_phrase(nouns[0], NOT_A, plural=False)
    instead = draw.noun_phrase(nouns[1], words.A, plural=False)
    clause = Clause(
        draw.key(), subject, verb, tense_of(time, verb), accusative=denied, negation="kein"
    )
    key = draw.key()
    en = [*clause.english(), Word("but", (key,)), *instead.english()]
    de = [*clause.german(), *GERMAN_COMMA.de, Word("sondern", (key,)), *instead.german("acc")]
    return Sentence(en, de)


# The verbs that begin a German question: few, so that training shows their capitalized forms.
ASKED = frozenset("know love need understand visit buy drink eat sleep work help call".split())


@construction("yes-no questions put the verb first and have no do")
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


@construction("wer, wen, wem and was have a case")
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
    if not people and any("person" in n.kinds for n in combinations.nouns(verb.object)):
        raise Retry
    clause = draw.begin(verb, draw.subject(verb), time)
    if verb.frame == "dative":
        pair = ("whom", "wem")
    else:
        pair = ("whom", "wen") if people else ("what", "was")
    return wh_question(clause, Phrase([Word(pair[0], (key,))], [Word(pair[1], (key,))]))


def wh_question(clause: Clause, front: Phrase) -> Sentence:
    """A question that begins with the phrase that it asks about."""
    return Sentence(front.en + clause.english(question=True), clause.german(front=front.de), "?")


@construction("welcher and wie viele agree with their noun and come first")
def which(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    clause = draw.begin(verb, draw.subject(verb), time)
    noun = draw.noun("object", verb, combinations.countable)
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


@construction("wo, wann and warum come first, the verb second")
def where(draw: Draw) -> Sentence:
    time = draw.one(("past", "perfect", "now", "future"))
    asked = draw.one((words.WHY, words.WHEN, words.WHERE))
    if time in {words.WHEN: ("perfect", "now"), words.WHY: ("future",)}.get(asked, ()):
        raise Retry
    clause = draw.clause(time)
    if asked is words.WHERE and clause.verb.en.whole not in AT_PLACES:
        raise Retry
    return wh_question(clause, draw.fixed(asked))
