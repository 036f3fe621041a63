"""Texts mixed into one corpus: directions, tags, weights and a temperature."""

import dataclasses
import shutil

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.config.data import DataConfig
from transformer_jax.config.texts import Text
from transformer_jax.errors import DataError
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.mixture import MixedCorpus, plain_corpora, plain_parts
from transformer_jax.training.text_checks import warn_of_equal_targets

LANGUAGES = ("en", "de", "fr")


@pytest.fixture
def folder(tmp_path):
    """Texts a (6 lines), b (2), valid and test (2 each): line 3 of a.fr is "a fr 3"."""
    for stem, lines in {"a": 6, "b": 2, "valid": 2, "test": 2}.items():
        for language in LANGUAGES:
            text = [f"{stem} {language} {i}" for i in range(lines)]
            runs.write_lines(tmp_path / f"{stem}.{language}", text)
    return tmp_path


def corpus_of(folder, *train: str, **keys) -> MixedCorpus:
    found = open_corpus(DataConfig(path=str(folder), train=train, **keys))
    assert isinstance(found, MixedCorpus)
    return found


@pytest.mark.parametrize(
    "given, text",
    [
        ("a", Text("a")),
        ("a*2", Text("a", weight=2)),
        ("a[:5]:en-de@bt*0.25", Text("a[:5]", "en-de", "bt", 0.25)),
        ("a@bt", Text("a", tag="bt")),
        ("a:de-en", Text("a", "de-en")),
        # What others mean by these signs stays a name.
        ("train-*", Text("train-*")),
        ("train[:10%]", Text("train[:10%]")),
        ("train[-5:]", Text("train[-5:]")),
        ("news@example.org", Text("news@example.org")),
    ],
)
def test_a_text_names_its_direction_tag_and_weight(given, text):
    assert Text.of(given) == text
    assert Text.of(text.name) == text._replace(weight=1)


def test_each_text_is_read_in_each_direction_and_says_its_target(folder):
    corpus = corpus_of(folder, "a[:2]", "b@bt", directions=("en-de", "fr-en"))
    assert [tuple(pair) for pair in corpus.split("train")] == [
        (">>de<< a en 0", "a de 0"),
        (">>de<< a en 1", "a de 1"),
        (">>en<< a fr 0", "a en 0"),
        (">>en<< a fr 1", "a en 1"),
        (">>de<< >>bt<< b en 0", "b de 0"),
        (">>de<< >>bt<< b en 1", "b de 1"),
        (">>en<< >>bt<< b fr 0", "b en 0"),
        (">>en<< >>bt<< b fr 1", "b en 1"),
    ]
    assert [pair.src for pair in corpus.split("valid")][1::2] == [
        ">>de<< valid en 1",
        ">>en<< valid fr 1",
    ]
    assert corpus.data.codes == (">>de<<", ">>en<<", ">>bt<<")


def test_a_text_may_have_a_direction_of_its_own_and_any_other_can_be_asked_for(folder):
    directions = ("en-de", "de-en")
    corpus = corpus_of(folder, "a[:1]:en-de", "a[1:2]:de-en", directions=directions)
    assert [pair.src for pair in corpus.split("train")] == [">>de<< a en 0", ">>en<< a de 1"]
    assert corpus.split("test:de-fr")[1] == (">>fr<< test de 1", "test fr 1")
    assert corpus.split("b:fr-en@bt")[0] == (">>en<< >>bt<< b fr 0", "b en 0")
    with pytest.raises(DataError, match="test2016: in which direction"):
        corpus.split("test2016")


def test_a_split_in_a_direction_keeps_the_tags_and_leaves_out_other_directions(folder):
    corpus = corpus_of(folder, "a", directions=("en-de", "en-fr"), test=("test@x", "b:en-fr"))
    assert [tuple(pair) for pair in corpus.split("test:en-de")] == [
        (">>de<< >>x<< test en 0", "test de 0"),
        (">>de<< >>x<< test en 1", "test de 1"),
    ]
    assert len(corpus.split("test:en-fr")) == 4 and len(corpus.split("test")) == 2 * 2 + 2


def test_validation_files_have_no_tag_of_the_training_text(folder):
    for train in (("a@bt", "b"), ("b", "a@bt")):
        assert [pair.src for pair in corpus_of(folder, *train).split("valid")] == [
            "valid en 0",
            "valid en 1",
        ]


def test_parts_that_share_pairs_need_validation_text(folder):
    for language in LANGUAGES:
        (folder / f"valid.{language}").unlink()
    both = ("en-de", "de-en")
    with pytest.raises(DataError, match=r"a and a\[:4\] share pairs"):
        corpus_of(folder, "a:en-de", "a[:4]:de-en", directions=both).split("valid")
    apart = corpus_of(folder, "a[:3]:en-de", "a[3:]:de-en", directions=both)
    assert len(apart.split("valid")) == 2


def test_blank_sources_get_no_code(folder):
    runs.write_lines(folder / "b.en", ["", " \t"])
    assert [pair.src for pair in corpus_of(folder, "b@bt").split("train")] == ["", " \t"]


def test_without_validation_files_each_text_gives_some_of_its_pairs_once(folder):
    for language in LANGUAGES:
        (folder / f"valid.{language}").unlink()
    corpus = corpus_of(folder, "a", "b*2", directions=("en-de", "de-en"))
    train, valid = (list(corpus.split(name)) for name in ("train", "valid"))
    # One of a and one of b, in both directions: the same lines, and none of them is trained on.
    assert (len(train), len(valid)) == (2 * (5 + 1), 2 * (1 + 1))
    lines = [{one.rpartition("<< ")[2].replace("de", "en") for one, _ in x} for x in (train, valid)]
    assert not lines[0] & lines[1]
    tagged = corpus_of(folder, "a", "b@bt", directions=("en-de",)).split("valid")
    assert [pair.src[:10] for pair in tagged] == [">>de<< a e"]  # none that a machine may have made
    assert len(corpus_of(folder, "a@x", "b@bt", directions=("en-de",)).split("valid")) == 2


def test_weights_and_temperature_say_how_often_an_epoch_has_a_pair(folder):
    assert corpus_of(folder, "a", "b*3").split("train").weights == (1, 3)
    assert corpus_of(folder, "a", "b@bt").split("train").pair_weights() is None
    given = corpus_of(folder, "a", "b*3").split("train").pair_weights()
    np.testing.assert_array_equal(given, [1] * 6 + [3] * 2)
    # Shares 6/8 and 2/8; their square roots, normalized, of 8 pairs in all.
    mixed = corpus_of(folder, "a", "b", temperature=2.0).split("train")
    shares = np.sqrt([0.75, 0.25]) / np.sqrt([0.75, 0.25]).sum()
    np.testing.assert_allclose(mixed.weights, 8 * shares / [6, 2])
    even = corpus_of(folder, "a", "b*3", temperature=1000.0).split("train")
    np.testing.assert_allclose(np.array(even.weights) * [6, 2], [6, 6], rtol=1e-3)


def test_fingerprints_tell_texts_tags_and_directions_apart(folder):
    digests = {
        corpus_of(folder, *train, **keys).fingerprint("train")
        for train, keys in [
            (["a@bt"], {}),
            (["a@x"], {}),
            (["a", "b@bt"], {}),
            (["a@bt", "b"], {}),
            (["a"], {"directions": ("en-de",)}),
            (["a"], {"directions": ("de-en",)}),
            (["a"], {"directions": ("en-de", "de-en")}),
        ]
    }
    assert len(digests) == 7
    plain = open_corpus(DataConfig(path=str(folder), train=("a", "b")))
    assert not isinstance(plain, MixedCorpus)


def test_plain_parts_are_what_was_joined(folder):
    corpus = corpus_of(folder, "a", "b@bt", directions=("en-de",))
    parts = list(plain_parts(corpus.split("train")))
    assert [part[0] for part in parts] == [("a en 0", "a de 0"), ("b en 0", "b de 0")]
    assert "a:en-de 6 pairs times 1, b:en-de@bt 2 pairs times 1" in corpus.describe()
    assert len(plain_corpora(corpus)) == 3  # of a, b, and the test text


def test_decode_to_names_the_target_of_a_run_without_directions():
    data = dataclasses.replace(runs.tiny_config().data, src="en", tgt="mul")
    assert data.between() == ("en", "mul") and data.between("", "zh") == ("en", "zh")
    tagged = dataclasses.replace(data, train=("a@formal", "b@zh"), test=("c@zh", "d@zh"))
    assert tagged.between("", "formal") == tagged.between() == ("en", "mul")
    assert tagged.between("test") == tagged.between("c@zh") == ("en", "zh")
    marked = dataclasses.replace(data, tgt="de", train=("a@bt",), test=("c@med",))
    assert marked.between("test") == marked.between("", "bt") == ("en", "de")
    assert marked.between("", "fra") == ("en", "fra")  # as an imported model of several may
    regional = dataclasses.replace(marked, tgt="zh-TW")
    assert regional.between("test") == ("en", "zh-TW")


def test_the_languages_of_a_split_are_those_of_its_texts():
    ways = ("en-de", "de-en", "en-fr")
    data = dataclasses.replace(runs.tiny_config().data, directions=ways, test=("test:en-fr",))
    assert data.between("test") == ("en", "fr") and data.between("valid") == ("en+de", "de+en+fr")
    both = dataclasses.replace(data, test=("test:en-fr", "test:en-de"))
    assert both.between("test") == ("en", "fr+de")
    without = dataclasses.replace(data, test=("test",))
    assert without.between("", "de") == ("en", "de")  # lines of a file are translated into it
    assert without.between("test", "de") == ("en+de", "de+en+fr")  # those of a split say their own


def test_languages_with_the_same_text_are_warned_of(folder, caplog):
    shutil.copy(folder / "a.de", folder / "a.fr")
    twice = {"src": "en", "tgt": "de"}
    for corpus, by_tag, languages in [
        (corpus_of(folder, "a", directions=("en-de", "en-fr")), False, ["de and in fr"]),
        (corpus_of(folder, "a", directions=("de-en", "fr-en")), False, []),
        (corpus_of(folder, "a@en", "a@fr", **twice), True, ["en and in fr"]),
        (corpus_of(folder, "a@new", "a@old", **twice), False, []),
        (corpus_of(folder, "a@en", "b@fr", **twice), True, []),
    ]:
        caplog.clear()
        warn_of_equal_targets(corpus, by_tag)
        text = "6 of the first 6 lines of a training text are the same in "
        assert caplog.messages == [text + one for one in languages]
