"""Times: their adverbials, the verbs that go with them, and their tenses.

A time is "past", "now", "habit" or "future", which have adverbials, or "perfect", "pluperfect",
"condition" or "modal".
"""

from grammar import words
from grammar.entries import Fixed, Verb

# The aspects of the verbs that go with a time: no "is finding", no "knew yesterday".
ASPECTS_AT = {
    "now": ("activity", "state"),
    "habit": ("activity", "routine"),
    "condition": ("activity", "routine", "event"),
    "past": ("activity", "routine", "event"),
    "perfect": ("activity", "routine", "event"),
    "pluperfect": ("activity", "routine", "event"),
    "future": ("activity", "routine", "event"),
    "modal": ("activity",),
}
UNITS = (
    ("days", "Tagen"),
    ("weeks", "Wochen"),
    ("months", "Monaten"),
    ("years", "Jahren"),
    ("hours", "Stunden"),
)
# By number: two days ago, vor zwei Tagen.
AGO = {
    number: tuple(
        Fixed(
            f"{words.NUMBERS[number].en} {en} ago",
            f"vor {words.NUMBERS[number].de} {de}",
            "0-1 1-2 2-0",
        )
        for en, de in UNITS
    )
    for number in range(2, 11)
}


def tense_of(time: str, verb: Verb) -> str:
    """The English tense that expresses the time with this verb."""
    if time == "now":
        return "progressive" if verb.aspect == "activity" else "present"
    if time == "past" and verb.frame == "location":
        return "past progressive"
    return {"habit": "present", "condition": "present", "modal": "present"}.get(time, time)
