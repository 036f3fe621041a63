"""A clause, and its words in both languages.

The German side follows the model of topological fields: front field, left bracket (the finite
verb), middle field, right bracket (separable prefix, participles, infinitives). In a verb-final
clause the finite verb comes last in the right bracket.
"""

import dataclasses

from grammar import english, german
from grammar.entries import Modal, Verb
from grammar.phrases import NOTHING, Nominal, Phrase, Word

BE = Verb(
    "copula",
    english.verb("be"),
    german.verb("sein ist war gewesen", "sein"),
    "",
    aspect="state",
)
HAVE = german.verb("haben hat hatte gehabt")
WERDEN = german.verb("werden wird wurde worden", "sein")
# Modals that come before the subject in questions; the others need "do".
INVERTED = frozenset("can could must should am is are was were".split())
PROGRESSIVE = ("progressive", "past progressive")
PASTS = ("past", "past progressive", "pluperfect")


@dataclasses.dataclass(slots=True)
class Clause:
    """Subject, verb, objects and adverbials.

    Tenses have the names of their English forms: present, progressive, past, past progressive,
    perfect, pluperfect and future.

    Links: `key` is the verb's, and that of an auxiliary that only English has (is, do). Of other
    auxiliaries and modals the first has key + 1 and the second (been, worden) key + 3. nicht has
    key + 2.
    """

    key: int
    subject: Nominal
    verb: Verb
    tense: str = "past"
    accusative: Nominal | None = None
    dative: Nominal | None = None
    to_dative: bool = False  # English: explain the task to the child
    # A direction, a predicate or a prepositional object: the last part of the middle field.
    complement: Phrase = NOTHING
    time: Phrase = NOTHING
    frequency: Phrase = NOTHING
    place: Phrase = NOTHING
    modal: Modal | None = None
    negation: str = ""  # "nicht", or "kein" if the object's determiner is negated
    passive: bool = False

    # English

    def _not(self) -> list[Word]:
        if self.negation == "kein" and self.accusative:
            return [Word("not", (self.accusative.key,))]
        return [Word("not", (self.key + 2,))] if self.negation else []

    def _modal_words(self, question: bool) -> list[Word]:
        assert self.modal
        person = self.subject.person
        past = self.tense in PASTS
        plain = (self.modal.past if past else self.modal.present)[person]
        negative = (self.modal.negative_past if past else self.modal.negative_present)[person]
        inverts = plain.split()[0] in INVERTED
        if self.negation:
            text = negative
        else:
            text = plain if inverts or not question else negative.replace(" not", "")
        aux = (self.key + 1,)
        no = self._not()
        words = []
        for w in text.split():
            if w == "cannot":
                words.append(Word(w, aux + no[0].links))
            else:
                words.append(no[0] if w == "not" else Word(w, aux))
        return words

    def _english_auxiliaries(self) -> tuple[list[str], str]:
        """The auxiliaries' texts and the form of the verb after them ("" for a finite verb)."""
        person = self.subject.person
        past = self.tense in PASTS
        if self.tense == "future":
            return ["will"], "base"
        if self.tense in PROGRESSIVE:
            return [english.BE[past, person]], "gerund"
        if self.tense in ("perfect", "pluperfect"):
            return ["had" if past else english.HAVE[person]], "participle"
        return [], ""

    def english_verbs(self, support: bool = False) -> tuple[list[Word], list[Word]]:
        """Auxiliaries and main verb; with `support`, "do" if there is no other auxiliary."""
        verb = self.verb.en
        own = (self.key,)
        aux = (self.key + 1,)
        person = self.subject.person
        past = self.tense in PASTS
        if self.modal:
            auxiliaries = self._modal_words(support)
            form = "base"
        else:
            texts, form = self._english_auxiliaries()
            links = own if self.tense in PROGRESSIVE and not self.passive else aux
            auxiliaries = [Word(text, links) for text in texts]
        if self.passive:
            being = {
                "": english.BE[past, person],
                "base": "be",
                "gerund": "being",
                "participle": "been",
            }[form]
            auxiliaries.append(Word(being, aux if form in ("", "gerund") else (self.key + 3,)))
            form = "participle"
        if self.verb is BE and not form:
            auxiliaries = [Word(english.BE[past, person], own)]
            main = []
        elif form:
            main = [Word(getattr(verb, form), own)]
        elif support or self.negation:
            do = "did" if past else "does" if person == "3s" else "do"
            auxiliaries, main = [Word(do, own)], [Word(verb.base, own)]
        else:
            main = [Word(verb.past if past else verb.third if person == "3s" else verb.base, own)]
        return auxiliaries, main

    def english_objects(self) -> list[Word]:
        """The objects."""
        words = []
        if self.dative and not self.to_dative:
            words += self.dative.english()
        if self.accusative:
            words += self.accusative.english()
        if self.dative and self.to_dative:
            # German expresses "to" by the case, which the first word shows.
            receiver = self.dative.english()
            words += [Word("to", receiver[0].links[:1]), *receiver]
        return words

    def english_predicate(self, main: list[Word]) -> list[Word]:
        """The verb with its particle, objects and adverbials."""
        particle = [Word(w, (self.key,)) for w in self.verb.en.particle.split()]
        objects = self.english_objects()
        if self.verb.en.movable and self.accusative and self.accusative.pronominal:
            words = main + objects + particle
        else:
            words = main + particle + objects
        return words + self.complement.en + self.place.en + self.time.en

    def english(self, question: bool = False) -> list[Word]:
        """The clause's words, as a statement or with the auxiliary before the subject."""
        auxiliaries, main = self.english_verbs(question)
        subject = self.subject.english(subject=True)
        no = [] if self.modal else self._not()
        first = auxiliaries[:1]
        rest = auxiliaries[1:]
        head = first + subject if question else subject + first
        return head + no + self.frequency.en + rest + self.english_predicate(main)

    def english_infinitive(self, to: Word | None = None) -> list[Word]:
        """to buy the car; without `to`: buy the car."""
        return [
            *([to] if to else []),
            *self.english_predicate([Word(self.verb.en.base, (self.key,))]),
        ]

    # German

    def german_verbs(self) -> tuple[Word, list[Word]]:
        """The finite verb without its prefix; infinitives and participles of the right bracket."""
        person = self.subject.person
        past = self.tense in PASTS
        own = (self.key,)
        aux = (self.key + 1,)
        verb = self.verb.de
        nonfinite: list[Word] = []
        if self.passive:
            nonfinite = [Word(verb.participle, own)]
            verb = WERDEN
            own = (self.key + 3,) if self.tense == "future" or self.modal else aux
        if self.modal:
            finite = german.IRREGULAR[self.modal.de][past][person]
            return Word(finite, aux), [*nonfinite, Word(verb.whole, own)]
        if self.tense == "future":
            return Word(WERDEN.finite(False, person), aux), [*nonfinite, Word(verb.whole, own)]
        if self.tense in ("perfect", "pluperfect"):
            auxiliary = HAVE if verb.auxiliary == "haben" else BE.de
            if self.passive:
                own = (self.key + 3,)
            return Word(auxiliary.finite(past, person), aux), [
                *nonfinite,
                Word(verb.participle, own),
            ]
        return Word(verb.finite(past, person), own), nonfinite

    def _prefix(self) -> list[Word]:
        """The separable prefix, if the verb itself is finite."""
        simple = not self.modal and not self.passive
        if simple and self.verb.de.prefix and self.tense in ("present", "past", *PROGRESSIVE):
            return [Word(self.verb.de.prefix, (self.key,))]
        return []

    def middle_field(self, subject: bool) -> list[Word]:
        """The words between the brackets, with or without the subject."""
        cases = ((self.dative, "dat"), (self.accusative, "acc"))
        own_subject = self.subject.german("nom") if subject else []
        reflexive = []
        if self.verb.reflexive:
            reflexive = [Word(german.REFLEXIVES[self.subject.person]["acc"], (self.key,))]
        early = reflexive
        late = []
        for nominal, case in reversed(cases):
            if nominal and nominal.pronominal:
                # Gestern sah ihn die Frau; but sie comes after the subject, or it would be read as
                # the subject.
                words = nominal.german(case)
                if words[0].text in ("sie", "es"):
                    late += words
                else:
                    early += words
        if self.subject.pronominal:
            start = own_subject + early + late
        else:
            start = early + own_subject + late
        # Definite objects come before nicht, oft and the place; the first indefinite object and all
        # after it come behind them.
        known: list[Word] = []
        news: list[Word] = []
        for nominal, case in cases:
            if nominal and not nominal.pronominal:
                if nominal.definite and not news:
                    known += nominal.german(case)
                else:
                    news += nominal.german(case)
            if case == "dat":
                known += self.time.de
        no = [Word("nicht", (self.key + 2,))] if self.negation == "nicht" else []
        return start + known + self.frequency.de + no + self.place.de + news + self.complement.de

    def german(self, order: str = "second", front: list[Word] | None = None) -> list[Word]:
        """The clause with its verb "second" (after `front` or the subject), "first" or "final"."""
        finite, nonfinite = self.german_verbs()
        if order == "final":
            middle = self.middle_field(subject=True)
            prefix = "".join(w.text for w in self._prefix())
            return [*middle, *nonfinite, Word(prefix + finite.text, finite.links)]
        middle = self.middle_field(subject=order == "first" or front is not None)
        start = [] if order == "first" else self.subject.german("nom") if front is None else front
        return [*start, finite, *middle, *self._prefix(), *nonfinite]

    def german_infinitive(self, zu: int | None = None) -> list[Word]:
        """das Auto zu kaufen, ihn anzurufen; `zu` is the link of the English "to"."""
        middle = self.middle_field(subject=False)
        verb = self.verb.de
        if zu is None:
            return [*middle, Word(verb.whole, (self.key,))]
        if verb.prefix:
            return [*middle, Word(verb.zu_infinitive, (self.key, zu))]
        return [*middle, Word("zu", (zu,)), Word(verb.infinitive, (self.key,))]
