"""The words that the grammar's code uses by name, and the numbers, which are composed."""

from grammar import lexicon
from grammar.entries import Adjective, Determiner, Fixed

THE = lexicon.DETERMINERS.only("the")
A = lexicon.DETERMINERS.only("a")
BARE = lexicon.DETERMINERS.only("bare")
THIS = lexicon.DETERMINERS.only("this")
EVERY = lexicon.DETERMINERS.only("every")
ALL = lexicon.DETERMINERS.only("all")
BOTH = lexicon.DETERMINERS.only("both")
MANY = lexicon.DETERMINERS.only("many")
SOME = lexicon.DETERMINERS.only("some")
SEVERAL = lexicon.DETERMINERS.only("several")
NO = lexicon.DETERMINERS.only("no")
WHICH = lexicon.DETERMINERS.only("which")
MY = lexicon.DETERMINERS.only("my")
OUR = lexicon.DETERMINERS.only("our")
HIS = lexicon.DETERMINERS.only("his")
HER = lexicon.DETERMINERS.only("her")
THEIR = lexicon.DETERMINERS.only("their")
ITS_M = lexicon.DETERMINERS.only("its_m")  # its owner is der or das
ITS_F = lexicon.DETERMINERS.only("its_f")  # its owner is die
OWNERS = {"1s": MY, "1p": OUR, "3p": THEIR, "3sm": HIS, "3sf": HER}

# Two to twelve, the tens, and what is composed of them: the unit comes first in German.
NUMBERS = {number: entry for number, entry in lexicon.NUMBERS.items() if number > 1}
NUMBERS |= {
    ten + unit: Fixed(
        f"{lexicon.NUMBERS[ten].en}-{lexicon.NUMBERS[unit].en}",
        f"{lexicon.NUMBERS[unit].de}und{lexicon.NUMBERS[ten].de}",
    )
    for ten in (20, 30, 40)
    for unit in range(1, 10)
}
NUMERALS = {
    number: Determiner("", entry.en, entry.de, "fixed", False)
    for number, entry in NUMBERS.items()
    if number <= 12
}

COMPARED = frozenset(a.en for a in lexicon.ADJECTIVES if "compared" in a.marks)
GOOD = frozenset(a.en for a in lexicon.ADJECTIVES if "good" in a.marks)
BAD = frozenset(a.en for a in lexicon.ADJECTIVES if "bad" in a.marks)


def contrast(first: Adjective, second: Adjective) -> bool:
    """Whether "first, but second" makes sense: one is good, one is bad, and both can be true."""
    sides = {("good" in a.marks, "bad" in a.marks) for a in (first, second)}
    if sides != {(True, False), (False, True)}:
        return False
    return second.en not in first.opposites and first.en not in second.opposites


TIMES = {time: lexicon.ADVERBIALS[time] for time in ("past", "now", "habit", "future")}
FREQUENCIES = lexicon.ADVERBIALS["frequency"]
COMMENTS = lexicon.ADVERBIALS["comment"]  # on the whole sentence: Vielleicht kommt er
DEGREES = lexicon.ADVERBIALS["degree"]
ALREADY = lexicon.ADVERBIALS.only("already")
STILL = lexicon.ADVERBIALS.only("still")
WHY = lexicon.ADVERBIALS.only("why")
WHEN = lexicon.ADVERBIALS.only("when")
WHERE = lexicon.ADVERBIALS.only("where")

SOMEWHERE = lexicon.PREPOSITIONS["somewhere"]  # where a thing is
WHEREABOUTS = lexicon.PREPOSITIONS["whereabouts"]  # where a person or an animal is
ONTO = lexicon.PREPOSITIONS["onto"]  # where a thing is put
UP = lexicon.PREPOSITIONS["up"]  # where a picture is hung
INTO = lexicon.PREPOSITIONS.only("into")
INTO_BY_CAR = lexicon.PREPOSITIONS.only("into_by_car")
TO = lexicon.PREPOSITIONS.only("to")
THROUGH = lexicon.PREPOSITIONS.only("through")
AROUND = lexicon.PREPOSITIONS.only("around")
OUT_OF = lexicon.PREPOSITIONS.only("out_of")
WITH = lexicon.PREPOSITIONS.only("with")
WITHOUT = lexicon.PREPOSITIONS.only("without")
FOR = lexicon.PREPOSITIONS.only("for")
AFTER = lexicon.PREPOSITIONS.only("after")
BEFORE = lexicon.PREPOSITIONS.only("before")
DURING = lexicon.PREPOSITIONS.only("during")
BECAUSE_OF = lexicon.PREPOSITIONS.only("because_of")
DESPITE = lexicon.PREPOSITIONS.only("despite")

CAN = lexicon.MODALS.only("can")
MUST = lexicon.MODALS.only("must")
SHOULD = lexicon.MODALS.only("should")
MAY = lexicon.MODALS.only("may")
MODALS = lexicon.MODALS.all()
