"""Invented names: the sentences stay what they are, and no split shows another one's names."""

import hashlib
import random
import re

from transformer_jax.grammar import generate
from transformer_jax.grammar.lexicon import NOUNS
from transformer_jax.grammar.names import NAMES, invented_name, names_in, renamed
from transformer_jax.grammar.pairs import detokenize

PAIRS = 600
# SHA-256 of the first 300 training pairs, all of whose names are invented.
DIGEST = "567dce2fb10e977e6a2f68f7a66feffe93eaa2f5cb6d7dd96f7e908b477b29c5"


def invented(split, count=300, seed=0):
    rng = random.Random(seed)
    return {invented_name(rng, split) for _ in range(count)}


def test_names_are_the_same_in_both_languages():
    assert len(NAMES) == 8 and {noun.de for noun in NOUNS if noun.proper} == NAMES


def test_names_are_pronounceable_and_no_words():
    for name in invented("train"):
        assert re.fullmatch(r"[B-W][aeiou]([b-w][aeiou]){2}[lnr]?", name), name
        assert name not in {form for noun in NOUNS for form in (noun.en, noun.de, *NAMES)}


def test_no_split_shows_a_name_of_another_whatever_the_seed():
    names = {split: invented(split, seed=1) for split in ("train", "valid", "test")}
    other = {split: invented(split, seed=2) for split in names}
    for split, own in names.items():
        for elsewhere in names.keys() - {split}:
            assert not own & (names[elsewhere] | other[elsewhere])


def test_every_form_of_a_name_is_replaced_and_nothing_else():
    words = ("Peter's", "car", "and", "Peters", "Paul", "Peterson")
    assert names_in(words) == ["Peter", "Paul"]
    want = ("Kemidan's", "car", "and", "Kemidans", "Paul", "Peterson")
    assert renamed(words, {"Peter": "Kemidan"}) == want


def test_all_but_the_names_is_as_without():
    """Words, places and links; training reads lines and links."""
    plain = generate("train", PAIRS)
    named = generate("train", PAIRS, invented_names=100)
    changed = 0
    for old, new in zip(plain, named, strict=True):
        assert (new.alignment, new.construction) == (old.alignment, old.construction)
        assert (new.src, new.tgt) == (detokenize(new.src_words), detokenize(new.tgt_words))
        assert not names_in(new.src_words) and not names_in(new.tgt_words)
        pairs = list(zip(old.src_words, new.src_words, strict=True))
        other = {after.removesuffix("'s") for before, after in pairs if before != after}
        assert other == {word.removesuffix("'s") for word in new.src_words} - {
            word.removesuffix("'s") for word in old.src_words
        }
        assert len(other) == len(names_in(old.src_words)) == len(names_in(old.tgt_words))
        for name in other:  # the German side has it too
            assert {name, f"{name}s"} & set(new.tgt_words), new.tgt
        changed += old != new
    assert changed > PAIRS / 20


def test_without_the_option_nothing_is_drawn_and_half_is_about_half():
    plain = generate("train", PAIRS)
    assert generate("train", PAIRS, invented_names=0) == plain
    half = generate("train", PAIRS, invented_names=50)
    assert half[:50] == generate("train", 50, invented_names=50)
    with_names = [n for n, pair in enumerate(plain) if names_in(pair.src_words)]
    share = sum(half[n] != plain[n] for n in with_names) / len(with_names)
    assert 0.3 < share < 0.7


def test_the_corpus_with_invented_names_is_the_recorded_one():
    digest = hashlib.sha256()
    for pair in generate("train", 300, invented_names=100):
        digest.update(repr(tuple(pair)).encode())
    assert digest.hexdigest() == DIGEST
