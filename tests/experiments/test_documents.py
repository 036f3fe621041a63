"""The documents, which pronoun counts as right, and where attention looks for its noun."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments import documents
from experiments.documents import Document, found_noun, of_other_gender, share_right, splits
from transformer_jax.config.data import DataConfig
from transformer_jax.evaluation.attention import Attention
from transformer_jax.text.corpora import open_corpus

TABLE = Document(
    ("The farmer buys the table .", "The boy sees it ."),
    ("Der Bauer kauft den Tisch .", "Der Junge sieht ihn ."),
    "farmer",
    "table",
    "m",
    "ihn",
)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Documents that are made in no time."""
    monkeypatch.setattr(documents, "SIZES", {"train": 300, "valid": 20, "test": 60})
    splits.cache_clear()
    yield
    splits.cache_clear()


def test_test_documents_have_words_together_that_training_never_shows():
    text = splits()
    shown = {(one.person, one.noun) for one in text["train"]}
    assert not shown & {(one.person, one.noun) for one in text["test"]}
    assert {one.noun for one in text["test"]} <= {one.noun for one in text["train"]}
    genders = [one.gender for one in text["test"]]
    assert min(map(genders.count, "mfn")) > 10
    for one in text["test"]:
        pronouns = [
            word for word in one.de[1].lower().split() if word in ("er", "sie", "es", "ihn")
        ]
        assert pronouns == [one.pronoun] and one.noun in one.en[0].split()
        assert share_right([one.de[1]], [one.pronoun]) == 1


def test_a_pronoun_counts_if_it_is_the_only_one():
    lines = ["Er ist alt .", "Der Junge sieht ihn .", "Sie ist er .", "Der Junge .", "Es ist alt ."]
    assert share_right(lines, ["er", "ihn", "er", "er", "sie"]) == 0.4


def test_the_wrong_sentence_has_another_gender():
    test = splits()["test"]
    assert all(a.gender != b.gender for a, b in zip(test, of_other_gender(test), strict=True))


def test_the_text_is_read_in_documents(tmp_path):
    documents.write_text(tmp_path)
    data = DataConfig(path=str(tmp_path), context=1)
    pairs = open_corpus(data).split("test")
    first = splits()["test"][0]
    assert pairs[0] == (f"{first.en[0]}\t", first.de[0])
    assert pairs[1] == (f"{first.en[1]}\t{first.en[0]}", first.de[1])
    assert len(pairs) == 120


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("best, found", [("▁ta", True), ("ble", True), ("▁farmer", False)])
def test_attention_finds_the_noun_if_its_largest_weight_there_is_on_it(several, best, found):
    """The second sentence, which comes first, may have larger weights."""
    between = ["</s>"] if several else []
    attended = ["▁The", "▁boy", "▁sees", "▁it", "▁.", *between]
    attended += ["▁The", "▁farmer", "▁buys", "▁the", "▁ta", "ble", "▁.", "</s>"]
    attending = ["▁Der", "▁Junge", "▁sieht", "▁ihn", "▁.", "</s>"]
    weights = np.full((2, 2, len(attending), len(attended)), 0.01)
    weights[1, :, 3, 3] = 0.6
    weights[1, :, 3, attended.index(best)] = 0.2
    cross = Attention(weights, attending, attended, (1, 2))
    assert found_noun(cross, TABLE) is found
    unknown = Attention(weights, ["▁i", "hn"], attended, (1, 2))
    assert found_noun(unknown, TABLE) is None


def test_shares_are_measured_with_each_first_sentence(monkeypatch):
    asked = []

    def translate(lines):
        asked.append(lines)
        return ["Er ist alt ."] * len(lines)

    run = SimpleNamespace(
        config=SimpleNamespace(data=SimpleNamespace(context=1)),
        translate=translate,
        attention=lambda source, target: SimpleNamespace(kinds={"cross": (source, target)}),
    )
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    monkeypatch.setattr(documents, "found_noun", lambda cross, document: cross[1] == document.de[1])
    found = documents.pronouns_of(SimpleNamespace(folder=None))  # type: ignore[arg-type]
    test = splits()["test"]
    share = sum(one.pronoun == "er" for one in test) / len(test)
    assert found["right"] == found["wrong"] == found["none"] == share and found["finds"] == 1
    assert asked[0][0] == f"{test[0].en[1]}\t{test[0].en[0]}"
    assert asked[2][0] == f"{test[0].en[1]}\t" and asked[1] != asked[0]
