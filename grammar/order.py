"""Whether a verb is what moves in a translation, by the gold links."""

from collections.abc import Collection, Sequence
from functools import cache

from grammar import english, german
from grammar.clauses import BE, HAVE, WERDEN
from grammar.lexicon import MODALS, VERBS
from transformer_jax.text.built_in_corpus import Link, crossings

AUXILIARIES = (
    *english.BE.values(),
    *english.HAVE.values(),
    "be",
    "been",
    "being",
    "had",
    "will",
    "do",
    "does",
    "did",
    "cannot",
)
NO_VERBS = frozenset(("to", "not"))  # words of modals: have to, do not have to


def moves_a_verb(
    src_words: Sequence[str], tgt_words: Sequence[str], links: Collection[Link]
) -> bool:
    """Whether a link that crosses another one belongs to a verb, or to a part of it: turn on."""
    src_forms, tgt_forms = verb_forms()
    # German nouns are capitalized, and so is the first word, whatever it is.
    texts = [tgt_words[0].lower(), *tgt_words[1:]]
    verbs = [(i, j) for i, j in links if src_words[i].lower() in src_forms]
    verbs = [(i, j) for i, j in verbs if texts[j] in tgt_forms]
    sources, targets = ({link[side] for link in verbs} for side in (0, 1))
    return any(i in sources or j in targets for crossing in crossings(links) for i, j in crossing)


@cache
def verb_forms() -> tuple[frozenset[str], frozenset[str]]:
    """The English and the German forms of verbs, auxiliaries and modals."""
    src = set(AUXILIARIES)
    tgt = set[str]()
    for modal in MODALS.all():
        for forms in (modal.present, modal.past, modal.negative_present, modal.negative_past):
            src.update(word for text in forms.values() for word in text.split())
    for verb in VERBS:
        src |= {verb.en.base, verb.en.third, verb.en.past, verb.en.participle, verb.en.gerund}
    for one in (*(verb.de for verb in VERBS), BE.de, HAVE, WERDEN):
        finite = {one.finite(past, who) for past in (False, True) for who in english.PERSONS}
        tgt |= finite | {one.prefix + form for form in finite}
        tgt |= {one.infinitive, one.whole, one.zu_infinitive, one.participle}
    tgt |= {form for tenses in german.IRREGULAR.values() for own in tenses for form in own.values()}
    return frozenset(src - NO_VERBS), frozenset(tgt - {""})
