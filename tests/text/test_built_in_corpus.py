"""The built-in corpus: its pairs, its invented names, crossing links; a config that asks for it."""

import hashlib
import random

import pytest

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text import built_in_corpus
from transformer_jax.text.built_in_corpus import (
    built_in_pairs,
    crossings,
    invented_name,
    names_in,
    renamed,
)
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.folder_corpus import Pair

# SHA-256 of all pairs, and of the first 300 training pairs with 100 or 50 % invented names.
DIGESTS = {
    ("train", 60_000, 0): "f192aa900d6a1b355cbc606d60247e9bba84c20d8abf489ff28613ab11b0561c",
    ("valid", 500, 0): "71db152335b32f7e2e8ce104660e01e2e978790f3f59613689087f280ea17128",
    ("test", 1_000, 0): "aac571d0ec3acf1c8afd37ebad6af62241d84ad6f6bda5d6bcc43345370eb8aa",
    ("train", 300, 100): "2cdc368f97d8bf9d1d7dcf111450f3d5d035b900a8cf99b3d0e28d00b85a89b7",
    ("train", 300, 50): "d94b1fa857094c5b55bb862e5ca5d200f1d1fe35f5425bd1b02cbc4bfac3cfaa",
}


@pytest.mark.parametrize("asked", DIGESTS)
def test_the_corpus_is_the_recorded_one(asked):
    """Recorded runs and tables depend on it."""
    digest = hashlib.sha256()
    for pair in built_in_pairs(*asked):
        digest.update(repr(tuple(pair)).encode())
    assert digest.hexdigest() == DIGESTS[asked]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: built_in_pairs("dev", 1), 'no split "dev"; it has train, valid, test'),
        (lambda: built_in_pairs("valid", 501), "500 valid pairs"),
        (lambda: built_in().split("dev"), "no split 'dev', only train, valid, test"),
    ],
)
def test_what_the_corpus_does_not_have_is_refused(ask, message):
    with pytest.raises(DataError, match=message):
        ask()


# Crossing links


def test_crossings_by_hand():
    assert crossings([(0, 0), (1, 1), (1, 2), (2, 3)]) == []
    assert crossings([(0, 1), (1, 0)]) == [((0, 1), (1, 0))]
    # has sold the car: hat das Auto verkauft
    assert crossings([(0, 0), (1, 3), (2, 1), (3, 2)]) == [((1, 3), (2, 1)), ((1, 3), (3, 2))]


def test_within_a_unit_nothing_crosses_but_other_words_cross_its_parts():
    """are relaxing: entspannen uns; turn off the lamp: schaltet die Lampe aus."""
    unit = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert crossings(unit) == []
    assert crossings(unit[:-1]) == [((0, 1), (1, 0))]
    assert crossings([(0, 0), (0, 2), (1, 0), (1, 2), (2, 1)]) == [
        ((0, 2), (2, 1)),
        ((1, 2), (2, 1)),
    ]


# Invented names


def invented(split, count=300, seed=0):
    rng = random.Random(seed)
    return {invented_name(rng, split) for _ in range(count)}


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


# A config that asks for it


def built_in(**changes):
    return open_corpus(DataConfig(**{"source": "grammar", "pairs": 40} | changes))


def test_the_built_in_corpus_has_its_sizes():
    corpus = built_in()
    assert [len(corpus.split(name)) for name in ("train", "valid", "test")] == [40, 500, 1_000]
    want = [Pair(pair.src, pair.tgt) for pair in built_in_pairs("train", 40)]
    assert list(corpus.split("train")) == want
    assert type(corpus.split("train")[0]) is Pair


def test_the_file_of_a_split_is_read_when_a_pair_is_asked_for(monkeypatch):
    asked = []
    read = built_in_corpus.built_in_pairs
    monkeypatch.setattr(
        built_in_corpus, "built_in_pairs", lambda *args: asked.append(args[0]) or read(*args)
    )
    corpus = built_in()
    assert len(corpus.split("test")) == 1_000 and asked == []
    assert corpus.alignments("train")[0].src and corpus.split("train")[39] and asked == ["train"]


def test_the_built_in_corpus_has_a_fingerprint_of_its_content(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    swapped = {"src": "de", "tgt": "en"}
    settings = [{}, {"pairs": 41}, swapped, {"invented_names": 100}]
    seen = set()
    for changes in settings:
        both = [built_in(**changes) for _ in range(2)]
        first, again = (corpus.fingerprint("train") for corpus in both)
        content = "\n".join(line for pair in both[0].split("train") for line in pair)
        assert first == again == hashlib.sha256(content.encode()).hexdigest()
        assert "aligned" not in vars(both[1].split("train"))  # it was in the cache
        seen.add(first)
    assert len(seen) == len(settings)
    assert len({both[0].fingerprint(name) for name in ("train", "valid", "test")}) == 3
    assert len({built_in(pairs=pairs).fingerprint("valid") for pairs in (40, 41)}) == 1


def test_the_built_in_corpus_has_invented_names_if_it_should():
    corpus = built_in(invented_names=100, src="de")
    drawn = built_in_pairs("train", 40, invented_names=100)
    assert list(corpus.split("train")) == [Pair(pair.tgt, pair.src) for pair in drawn]
    assert "100 % invented names" in corpus.describe()
    assert "names" not in built_in(src="de").describe()
