"""Whether a translation keeps the order of the words, by the gold links, and what moves."""

from collections.abc import Collection, Sequence
from functools import cache

from transformer_jax.grammar import english, german
from transformer_jax.grammar.clauses import BE, HAVE, WERDEN
from transformer_jax.grammar.lexicon import MODALS, VERBS

Link = tuple[int, int]  # (source word, target word), 0-based

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


def crossings(links: Collection[Link]) -> list[tuple[Link, Link]]:
    """The pairs of links whose words come in the opposite order in the translation.

    Two source words that are both linked to the same two target words are one unit, and within it
    nothing crosses: "are relaxing" is "entspannen uns".
    """
    known = frozenset(links)
    return [
        ((i, j), (later, earlier))
        for i, j in links
        for later, earlier in links
        if i < later and j > earlier and not {(i, earlier), (later, j)} <= known
    ]


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
