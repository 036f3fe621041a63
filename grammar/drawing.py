"""Draws phrases and clauses at random from words that the split may combine."""

from collections.abc import Sequence

from grammar import combinations, phrases, words
from grammar.choices import SIMPLE_FRAMES, Choices, Retry
from grammar.clauses import BE, Clause
from grammar.entries import (
    Adjective,
    Determiner,
    Fixed,
    Noun,
    Preposition,
    Verb,
)
from grammar.phrases import Nominal, NounPhrase, Phrase, Pronoun, Word
from grammar.times import AGO, tense_of


class Draw(Choices):
    """The random choices of one sentence, and the phrases and clauses that they make."""

    # Phrases

    def fixed(self, entry: Fixed) -> Phrase:
        """An adverbial, number or conjunction, which never changes."""
        return phrases.fixed(entry, self.key())

    def when(self, time: str) -> Phrase:
        """An adverbial of time."""
        if time == "past" and self.chance(0.2):
            return self.fixed(self.one(AGO[2 + int(self.rng.random() * 9)]))
        return self.fixed(self.one(words.TIMES[time]))

    def determiner(
        self, noun: Noun, plural: bool, owner: Determiner | None, subject: bool
    ) -> Determiner:
        """A determiner that sounds natural: my brother, some cheese, three cars.

        Args:
          owner: the possessive of somebody who may own it.
          subject: whether the noun is the subject, which is never bare.
        """
        kin = "kin" in noun.kinds
        own = kin or "own" in noun.kinds
        if owner is None and own and self.chance(0.3 if not kin else 1.0):
            owner = self.one((words.MY, words.OUR, words.HIS, words.HER, words.THEIR))
        if kin:
            assert owner
            return owner
        if (
            owner
            and noun.kinds & combinations.OWNABLE
            and not noun.kinds & combinations.NOT_OWNABLE
            and self.chance(0.35)
        ):
            return owner
        if noun.mass:
            choices = [
                (0.55, words.THE),
                (0.1, words.THIS),
                (0.35, words.THE if subject else words.BARE),
            ]
        elif plural:
            number = words.NUMERALS[2 + int(self.rng.random() * 11)]
            some = self.one((words.MANY, words.SOME, words.SEVERAL, words.ALL, words.BOTH))
            bare = some if subject else words.BARE
            if noun.kinds & combinations.UNCOUNTED:
                number = words.THE
            choices = [(0.4, words.THE), (0.1, words.THIS), (0.2, number), (0.2, some), (0.1, bare)]
        else:
            choices = [(0.55, words.THE), (0.33, words.A), (0.09, words.THIS), (0.03, words.EVERY)]
        return self.weighted(choices)

    def noun_phrase(
        self,
        noun: Noun,
        determiner: Determiner | None = None,
        *,
        plural: bool | None = None,
        owner: Determiner | None = None,
        subject: bool = False,
        adjective: float = 0.3,
    ) -> NounPhrase:
        """A noun phrase with this noun; `adjective` is the probability of an adjective.

        The determiner and the number are drawn unless they are given.
        """
        if noun.proper:
            return NounPhrase(self.key(), noun, words.BARE)
        if plural is None:
            plural = not noun.mass and "single" not in noun.kinds and self.chance(0.25)
        if (plural and noun.mass) or (determiner is words.A and noun.mass):
            raise Retry
        if determiner is None:
            determiner = self.determiner(noun, plural, owner, subject)
        modifier = self.adjective(noun) if self.chance(adjective) else None
        return NounPhrase(self.key(), noun, determiner, plural, modifier)

    def definite(
        self,
        noun: Noun,
        owner: Determiner | None = None,
        adjective: float = 0.25,
        plural: bool | None = None,
    ) -> NounPhrase:
        """A definite noun phrase: the, this, or a possessive."""
        kin = "kin" in noun.kinds
        owners = (owner,) if owner else (words.MY, words.OUR, words.HIS, words.HER)
        own = kin or (
            bool(noun.kinds & combinations.OWNABLE) and owner is not None and self.chance(0.3)
        )
        determiner = self.one(owners) if own else words.THE
        if determiner is words.THE and self.chance(0.15):
            determiner = words.THIS
        return self.noun_phrase(noun, determiner, plural=plural, adjective=adjective)

    def pronoun(self, noun: Noun, first: bool = True) -> Pronoun:
        """A personal pronoun for such a person; `first` allows I and we."""
        if first and self.chance(0.45):
            return Pronoun(self.key(), self.one(("1s", "1s", "1p")))
        if self.chance(0.3) or noun.neutral:
            return Pronoun(self.key(), "3p")
        return Pronoun(self.key(), "3s" + noun.gender)

    def subject(self, verb: Verb, pronouns: float = 0.25) -> Nominal:
        """A subject for the verb."""
        noun = self.noun("subject", verb)
        if "person" in noun.kinds and self.chance(pronouns):
            return self.pronoun(noun)
        self.combine("subject", verb, noun)
        return self.noun_phrase(noun, subject=True)

    def owner(self, nominal: Nominal) -> Determiner | None:
        """The possessive of the nominal: his, their; None if German has another one (das Kind)."""
        if isinstance(nominal, Pronoun):
            return words.OWNERS[nominal.form]
        if nominal.person != "3s":
            return words.OWNERS[nominal.person]
        if (
            not isinstance(nominal, NounPhrase)
            or nominal.noun.neutral
            or "person" not in nominal.noun.kinds
        ):
            return None
        return words.OWNERS["3s" + nominal.noun.gender]

    def object(
        self, verb: Verb, subject: Nominal, relation: str = "object", pronouns: float = 0.15
    ) -> Nominal:
        """An object for the verb; not the noun of the subject."""
        taken = subject.noun if isinstance(subject, NounPhrase) else None
        noun = self.noun(relation, verb, lambda n: n is not taken)
        if "person" in noun.kinds and self.chance(pronouns):
            pronoun = self.pronoun(noun, first=subject.person in ("3s", "3p"))
            if not (isinstance(subject, Pronoun) and subject.form == pronoun.form):
                return pronoun
        self.combine(relation, verb, noun)
        if relation == "object" and verb.en.base in combinations.ACQUIRING:
            return self.noun_phrase(noun, owner=words.THE)
        # A bare plural would not show its dative, so it is drawn like a subject.
        plain = verb.frame == "dative" or relation == "receiver"
        return self.noun_phrase(noun, owner=self.owner(subject), subject=plain)

    def place(self, prepositions: Sequence[Preposition], taken: Nominal | None = None) -> Phrase:
        """A prepositional phrase of place, with a definite noun."""
        preposition = self.one(prepositions)
        used = taken.noun if isinstance(taken, NounPhrase) else None
        noun = self.noun("place", preposition, lambda n: n is not used)
        self.combine("place", preposition, noun)
        determiner = words.THIS if self.chance(0.15) else words.THE
        nominal = self.noun_phrase(noun, determiner, plural=False, adjective=0.2)
        return phrases.prepositional(
            self.key(), preposition.en, preposition.de, preposition.case, nominal
        )

    def whereabouts(self, nominal: Nominal) -> tuple[Preposition, ...]:
        """The prepositions for where somebody or something is."""
        thing = isinstance(nominal, NounPhrase) and not nominal.noun.kinds & {"person", "animal"}
        return words.SOMEWHERE if thing else words.WHEREABOUTS

    # Clauses

    def begin(self, verb: Verb, subject: Nominal, time: str) -> Clause:
        """A clause of verb and subject only."""
        return Clause(self.key(), subject, verb, tense_of(time, verb))

    def complete(self, verb: Verb, subject: Nominal, time: str, pronouns: float = 0.15) -> Clause:
        """A clause of verb and subject with the objects that its frame needs."""
        clause = self.begin(verb, subject, time)
        match verb.frame:
            case "transitive":
                clause.accusative = self.object(verb, subject, pronouns=pronouns)
            case "dative":
                clause.dative = self.object(verb, subject, pronouns=pronouns)
            case "ditransitive" | "transfer":
                clause.to_dative = verb.frame == "transfer"
                clause.accusative = self.object(verb, subject, pronouns=0)
                clause.dative = self.object(verb, subject, "receiver", pronouns)
                if same_noun(clause.accusative, clause.dative):
                    raise Retry
            case "prepositional" | "reflexive prepositional":
                clause.complement = self.prepositional_object(clause, pronouns)
            case "location":
                clause.complement = self.place(self.whereabouts(subject), subject)
            case "placement":
                clause.accusative = self.object(verb, subject)
                onto = words.UP if verb.en.base == "hang" else words.ONTO
                clause.complement = self.place(onto, clause.accusative)
            case "motion":
                into = words.INTO_BY_CAR if verb.en.base == "drive" else words.INTO
                clause.complement = self.place((into, words.TO, words.TO), subject)
        return clause

    def prepositional_object(self, clause: Clause, pronouns: float = 0.15) -> Phrase:
        """The verb's prepositional object: auf den Bus."""
        nominal = self.object(clause.verb, clause.subject, pronouns=pronouns)
        en, de, case = clause.verb.preposition
        if en == "-":
            words_de = phrases.prepositional(clause.key, "", de, case, nominal).de
            return Phrase(nominal.english(), words_de)
        return phrases.prepositional(self.key(), en, de, case, nominal)

    def clause(self, time: str, frames: str = SIMPLE_FRAMES, pronouns: float = 0.25) -> Clause:
        """A clause at a time, which is a key of ASPECTS_AT."""
        verb = self.verb(time, frames)
        return self.complete(verb, self.subject(verb, pronouns), time)

    def predication(self, subject: NounPhrase, past: bool) -> Clause:
        """The subject, to be, and an adjective: Der Mann ist alt."""
        adjective = self.adjective(subject.noun)
        if adjective is None:
            raise Retry
        return self.copula(subject, adjective, past)

    def copula(self, subject: Nominal, adjective: Adjective, past: bool) -> Clause:
        """Subject, to be, adjective."""
        key = self.key()
        complement = Phrase([Word(adjective.en, (key,))], [Word(adjective.de, (key,))])
        return Clause(self.key(), subject, BE, "past" if past else "present", complement=complement)

    def comma(self) -> Phrase:
        """A comma on both sides."""
        key = self.key()
        return Phrase([Word(",", (key,))], [Word(",", (key,))])


GERMAN_COMMA = Phrase([], [Word(",")])


def same_noun(first: Nominal | None, second: Nominal | None) -> bool:
    """Whether both are noun phrases with the same noun."""
    return (
        isinstance(first, NounPhrase)
        and isinstance(second, NounPhrase)
        and first.noun is second.noun
    )
