"""The other words: determiners, adjectives, numbers, adverbials, prepositions, modals."""

from transformer_jax.grammar.lexicon_entries import (
    Determiner,
    Fixed,
    Modal,
    Preposition,
)
from transformer_jax.grammar.lexicon_entries import adjective as a

THE = Determiner("the", "the", "d", "definite", True, True, True)
A = Determiner("a", "", "ein", "ein", True, False, False)
BARE = Determiner("", "", "", "", True, True, False)
THIS = Determiner("this", "these", "dies", "der", True, True, True)
EVERY = Determiner("every", "", "jed", "der", True, False, True)
ALL = Determiner("", "all", "all", "der", False, True, True)
BOTH = Determiner("", "both", "beid", "der", False, True, True)
MANY = Determiner("", "many", "viel", "der", False, True, False)
SOME = Determiner("", "some", "einig", "der", False, True, False)
SEVERAL = Determiner("", "several", "mehrer", "der", False, True, False)
NO = Determiner("no", "no", "kein", "ein", True, True, False)
WHICH = Determiner("which", "which", "welch", "der", True, True, True)
MY = Determiner("my", "my", "mein", "ein", True, True, True)
OUR = Determiner("our", "our", "unser", "ein", True, True, True)
HIS = Determiner("his", "his", "sein", "ein", True, True, True)
HER = Determiner("her", "her", "ihr", "ein", True, True, True)
THEIR = Determiner("their", "their", "ihr", "ein", True, True, True)
ITS_M = Determiner("its", "its", "sein", "ein", True, True, True)  # its owner is der or das
ITS_F = Determiner("its", "its", "ihr", "ein", True, True, True)  # its owner is die
DETERMINERS = (
    THE, A, THIS, EVERY, ALL, BOTH, MANY, SOME, SEVERAL, NO, WHICH,
    MY, OUR, HIS, HER, THEIR, ITS_M, ITS_F,
)  # fmt: skip
OWNERS = {"1s": MY, "1p": OUR, "3p": THEIR, "3sm": HIS, "3sf": HER}

SMALL = "two three four five six seven eight nine ten eleven twelve".split()
SMALL_DE = "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TENS_DE = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
NUMBERS = {i: Fixed(en, de) for i, (en, de) in enumerate(zip(SMALL, SMALL_DE, strict=True), 2)}
NUMBERS |= {10 * i: Fixed(en, de) for i, (en, de) in enumerate(zip(TENS, TENS_DE, strict=True), 2)}
UNITS_DE = ["ein", *SMALL_DE[:8]]
NUMBERS |= {
    # The unit comes first in German: twenty-three = dreiundzwanzig.
    ten + unit: Fixed(f"{NUMBERS[ten].en}-{en}", f"{UNITS_DE[unit - 1]}und{NUMBERS[ten].de}")
    for ten in (20, 30, 40)
    for unit, en in enumerate(["one", *SMALL[:8]], 1)
}
NUMERALS = {
    i: Determiner("", n.en, n.de, "fixed", False, True, False)
    for i, n in NUMBERS.items()
    if i <= 12
}

ADJECTIVES = (
    a("old", "alt älter ältest",
      "adult kin name animal thing clothes vehicle furniture building town tree cheese wine work"),
    a("young", "jung jünger jüngst", "person animal -kin -boy"),
    a("new", "neu neuer neuest",
      "thing clothes vehicle furniture building text film song plan rule idea friend colleague "
      "neighbor"),
    a("big bigger biggest", "groß größer größt",
      "animal thing vehicle furniture building room outside town cake pizza opening -art"),
    a("small", "klein kleiner kleinst",
      "animal youngster thing vehicle furniture building room outside town produce cake pizza"),
    a("tall", "groß größer größt", "person"),
    a("high", "hoch höher höchst", "tower mountain wall tree"),
    a("long", "lang länger längst",
      "text -newspaper -bill river bridge coat dress skirt trip meeting exam film train war"),
    a("short", "kurz kürzer kürzest",
      "text trip meeting exam film coat dress skirt pencil sentence -newspaper -bill"),
    a("beautiful", "schön",
      "thing clothes woman lady girl princess queen horse bird building town outside song plant "
      "-tool -landmark"),
    a("ugly", "hässlich hässlicher hässlichst",
      "thing clothes vehicle furniture building -small -tool"),
    a("expensive", "teuer teurer teuerst",
      "thing clothes vehicle furniture wine cheese hotel restaurant trip -letter"),
    a("cheap", "billig", "thing clothes vehicle furniture wine beer hotel restaurant trip -letter"),
    a("heavy", "schwer", "luggage machine furniture hammer tent ladder box"),
    a("light", "leicht", "luggage tent ladder jacket bicycle"),
    a("broken", "kaputt", "device vehicle furniture fragile toy opening umbrella tent -mirror"),
    a("clean", "sauber", "clothes dishes room window vehicle -glass river beach"),
    a("dirty", "schmutzig", "clothes dishes room window vehicle river"),
    a("modern", "modern", "building device machine vehicle furniture -lamp kitchen town"),
    a("fast", "schnell", "vehicle horse dog wolf computer"),
    a("slow", "langsam", "vehicle computer donkey"),
    a("strong stronger strongest", "stark stärker stärkst",
      "person horse lion bear elephant coffee donkey storm"),
    a("friendly", "freundlich", "person dog"),
    a("polite", "höflich", "person"),
    a("clever cleverer cleverest", "klug klüger klügst", "person dog monkey idea plan answer"),
    a("brave", "mutig", "person dog decision"),
    a("lazy", "faul", "person cat donkey dog"),
    a("diligent", "fleißig", "person"),
    a("honest", "ehrlich", "person answer"),
    a("strict", "streng",
      "teacher judge boss father mother king queen rule grandmother grandfather"),
    a("famous", "berühmt", "artist writer expert sight work president"),
    a("rich", "reich", "adult kin"),
    a("poor", "arm ärmer ärmst", "person village"),
    a("happy", "glücklich", "person"),
    a("sad", "traurig", "person work story"),
    a("tired", "müde", "person animal"),
    a("ill", "krank kränker kränkst", "person animal"),
    a("healthy", "gesund gesünder gesündest", "person animal produce"),
    a("hungry", "hungrig", "person animal"),
    a("nervous", "nervös", "person horse"),
    a("curious", "neugierig", "person cat monkey mouse"),
    a("dangerous", "gefährlich", "wild criminal trip plan game river storm knife"),
    a("loud", "laut", "machine engine radio song child party concert"),
    a("quiet", "ruhig", "room park village beach hotel child library neighbor"),
    a("dark", "dunkel dunkler dunkelst", "room forest clothes beer"),
    a("fresh", "frisch", "produce bread butter meat milk egg juice flower cheese cake -potato"),
    a("warm", "warm wärmer wärmst", "clothes warm soup bread room"),
    a("cold", "kalt kälter kältest", "drink soup pizza room lake river"),
    a("hot hotter hottest", "heiß", "warm soup potato sausage"),
    a("sweet", "süß", "produce cake cookie wine juice chocolate lemonade -tomato -potato -carrot"),
    a("delicious", "köstlich", "food wine juice coffee lemonade"),
    a("interesting", "interessant",
      "text work topic matter person town museum concert -bill -form -learning -war -mistake "
      "-rule"),
    a("boring", "langweilig", "text film game concert meeting party exam village -form -bill"),
    a("important", "wichtig",
      "text matter topic meeting exam customer guest visitor witness game -war -newspaper "
      "-mistake -joke -dream"),
    a("difficult", "schwierig",
      "puzzle question decision language text exam exam customer trip -magazine -newspaper -bill "
      "-letter -postcard -message"),
    a("easy", "einfach",
      "puzzle question exam word sentence rule game text -magazine -newspaper -bill -letter "
      "-postcard -message"),
    a("good better best", "gut besser best",
      "idea plan answer question decision joke work text expert artist food drink friend film "
      "restaurant hotel party concert -bill -form"),
    a("bad worse worst", "schlecht",
      "idea plan answer decision joke work text film restaurant hotel teacher student party "
      "concert -bill -form"),
    a("terrible", "schrecklich", "hardship weather disturbance mistake dream film noise trip"),
    a("red", "rot", "clothes vehicle colored flower apple wine"),
    a("green", "grün", "clothes vehicle colored apple bottle"),
    a("blue", "blau", "clothes vehicle colored vase flower"),
    a("black", "schwarz", "clothes vehicle pet horse colored cow"),
    a("white", "weiß", "clothes vehicle pet horse colored wall duck"),
    a("yellow", "gelb", "clothes vehicle flower lamp colored pear"),
    a("brown", "braun", "clothes horse dog cow bear colored"),
)  # fmt: skip
# The adjectives that are compared, few enough that training shows all their forms.
COMPARED = frozenset(
    "old young new big small tall long short beautiful expensive cheap heavy fast slow strong "
    "clever happy dangerous interesting important difficult easy good bad warm cold".split()
)
GOOD = frozenset(
    "beautiful cheap clean modern fast strong friendly polite clever brave honest famous rich "
    "happy healthy fresh sweet delicious interesting important easy good quiet new light".split()
)
BAD = frozenset(
    "ugly expensive dirty broken slow lazy strict poor sad tired ill nervous dangerous loud boring "
    "difficult bad old heavy small dark cold short hungry".split()
)
OPPOSITES = frozenset(
    frozenset(pair.split())
    for pair in (
        "beautiful ugly", "cheap expensive", "clean dirty", "modern old", "new old", "young old",
        "fast slow", "rich poor", "happy sad", "healthy ill", "interesting boring",
        "easy difficult", "good bad", "quiet loud", "fresh old", "light heavy", "modern broken",
        "delicious bad", "friendly bad", "important boring", "interesting bad",
    )
)  # fmt: skip


def contrast(first: str, second: str) -> bool:
    """Whether "X, but Y" makes sense: one speaks for the thing, one against, both may hold."""
    sides = (first in GOOD and second in BAD) or (first in BAD and second in GOOD)
    return sides and frozenset((first, second)) not in OPPOSITES


FIRST = a("first", "erst", "")
SECOND = a("second", "zweit", "")
THIRD = a("third", "dritt", "")
LAST = a("last", "letzt", "")
ORDINALS = (FIRST, SECOND, THIRD, LAST)

DAYS = {
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag",
    "Friday": "Freitag", "Saturday": "Samstag", "Sunday": "Sonntag",
}  # fmt: skip
ON_DAYS = tuple(Fixed(f"on {en}", f"am {de}") for en, de in DAYS.items())
PAST_TIMES = (
    Fixed("yesterday", "gestern"),
    Fixed("the day before yesterday", "vorgestern"),
    Fixed("this morning", "heute Morgen"),
    Fixed("last week", "letzte Woche"),
    Fixed("last month", "letzten Monat"),
    Fixed("last year", "letztes Jahr"),
    Fixed("last summer", "letzten Sommer"),
    Fixed("last winter", "letzten Winter"),
    *ON_DAYS,
)
PRESENT_TIMES = (
    Fixed("now", "jetzt"),
    Fixed("at the moment", "im Moment", "0-0 1-0 2-1"),
    Fixed("today", "heute"),
)
HABIT_TIMES = (
    Fixed("every day", "jeden Tag"),
    Fixed("every morning", "jeden Morgen"),
    Fixed("every evening", "jeden Abend"),
    Fixed("every week", "jede Woche"),
    Fixed("in the morning", "am Morgen", "0-0 1-0 2-1"),
    Fixed("in the evening", "am Abend", "0-0 1-0 2-1"),
    Fixed("in summer", "im Sommer"),
    Fixed("in winter", "im Winter"),
)
FUTURE_TIMES = (
    Fixed("tomorrow", "morgen"),
    Fixed("the day after tomorrow", "übermorgen"),
    Fixed("soon", "bald"),
    Fixed("this evening", "heute Abend"),
    Fixed("next week", "nächste Woche"),
    Fixed("next month", "nächsten Monat"),
    Fixed("next year", "nächstes Jahr"),
    *ON_DAYS,
)
FREQUENCIES = (
    Fixed("often", "oft"),
    Fixed("always", "immer"),
    Fixed("sometimes", "manchmal"),
    Fixed("regularly", "regelmäßig"),
    Fixed("rarely", "selten"),
    Fixed("never", "nie"),
)
# Of the whole sentence: in front they call for inversion in German.
COMMENTS = (
    Fixed("unfortunately", "leider"),
    Fixed("perhaps", "vielleicht"),
    Fixed("of course", "natürlich"),
    Fixed("suddenly", "plötzlich"),
    Fixed("finally", "endlich"),
    Fixed("then", "dann"),
)
ALREADY = Fixed("already", "schon")
STILL = Fixed("still", "noch")
AT_HOME = Fixed("at home", "zu Hause")
HOME = Fixed("home", "nach Hause")
DEGREES = (Fixed("very", "sehr"), Fixed("too", "zu"), Fixed("quite", "ziemlich"))

p = Preposition
# Where one is (dative) and where one goes (accusative): the same prepositions.
SOMEWHERE = (
    p("on", "auf", "dat", "surface -roof"),
    p("under", "unter", "dat", "table bed tree bench desk sofa"),
    p("behind", "hinter", "dat", "landmark"),
    p("next to", "neben", "dat", "landmark"),
    p("in front of", "vor", "dat", "landmark"),
    p("in", "in", "dat", "inside"),
    p("at", "an", "dat", "at"),
)
# People and pets are on sofas, not on shelves.
WHEREABOUTS = (
    p("on", "auf", "dat", "seat bed carpet"),
    p("under", "unter", "dat", "tree table bed"),
    *SOMEWHERE[2:],
)
ONTO = (
    p("on", "auf", "acc", "surface -roof"),
    p("under", "unter", "acc", "table bed bench desk sofa chair"),
    p("behind", "hinter", "acc", "furniture -mirror -carpet"),
    p("next to", "neben", "acc", "furniture -carpet"),
)
# Where pictures go: on the wall is an, not auf.
UP = (
    p("on", "an", "acc", "wall"),
    p("above", "über", "acc", "table bed bench desk sofa piano"),
    p("next to", "neben", "acc", "opening mirror lamp shelf cupboard -gate"),
)
INTO = p("into", "in", "acc", "inside")
INTO_BY_CAR = p("into", "in", "acc", "town garage park forest")
TO = p("to", "zu", "dat", "goal")
THROUGH = p("through", "durch", "acc", "park forest city village garden")
AROUND = p("around", "um", "acc", "lake house church castle tree village")
OUT_OF = p("out of", "aus", "dat", "building room -at -tower -bridge")
WITH = p("with", "mit", "dat", "person pet")
WITHOUT = p("without", "ohne", "acc", "person dog")
FOR = p("for", "für", "acc", "person")
AFTER = p("after", "nach", "dat", "event work storm war -novel -poem -story -song")
BEFORE = p("before", "vor", "dat", "event storm war")
DURING = p("during", "während", "gen", "event war storm")
BECAUSE_OF = p("because of", "wegen", "gen", "hardship weather disturbance exam problem mistake")
DESPITE = p("despite", "trotz", "gen", "weather hardship disturbance problem mistake")
PREPOSITIONS = (
    *SOMEWHERE, *WHEREABOUTS, *ONTO, *UP, INTO, TO, THROUGH, AROUND, OUT_OF, WITH, WITHOUT, FOR,
    AFTER, BEFORE, DURING, BECAUSE_OF, DESPITE,
)  # fmt: skip


def _same(word: str, third: str = "") -> dict[str, str]:
    return {"1s": word, "3s": third or word, "1p": word, "3p": word}


def _be(rest: str) -> tuple[dict[str, str], dict[str, str]]:
    present = {"1s": "am", "3s": "is", "1p": "are", "3p": "are"}
    past = {"1s": "was", "3s": "was", "1p": "were", "3p": "were"}
    return {p: f"{b} {rest}" for p, b in present.items()}, {
        p: f"{b} {rest}" for p, b in past.items()
    }


CAN = Modal("können", _same("can"), _same("could"), _same("cannot"), _same("could not"))
MUST = Modal(
    "müssen",
    _same("must"),
    _same("had to"),
    _same("do not have to", "does not have to"),
    _same("did not have to"),
)
SHOULD = Modal("sollen", _same("should"), _same("should"), _same("should not"), _same("should not"))
WANT = Modal(
    "wollen",
    _same("want to", "wants to"),
    _same("wanted to"),
    _same("do not want to", "does not want to"),
    _same("did not want to"),
)
MAY = Modal("dürfen", *_be("allowed to"), *_be("not allowed to"))
MODALS = (CAN, MUST, SHOULD, WANT, MAY)

CONJUNCTIONS = {
    "because": "weil", "although": "obwohl", "when": "wenn", "if": "wenn", "while": "während",
    "before": "bevor", "after": "nachdem", "as soon as": "sobald", "that": "dass",
    "whether": "ob", "and": "und", "or": "oder", "but": "aber", "so": "deshalb",
}  # fmt: skip
