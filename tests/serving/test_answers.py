"""What requests may ask for, why some are refused, and answers made from what a run returns."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.tiny import tiny_model
from transformer_jax.decoding.lines import Translation
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.attention import Attention
from transformer_jax.serving.answers import answer_all, model_of
from transformer_jax.serving.asked import (
    Asked,
    Limits,
    Model,
    Refused,
    parse_attention,
    parse_translate,
)

# Requests ----------------------------------------------------------------------------------------

LIMITS = Limits(lines=3, characters=20)
MODEL = Model(beam_size=4, layers=2, heads=8)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({"text": "a b"}, Asked(["a b"])),
        ({"text": "a\r\n\nb"}, Asked(["a", "", "b"])),
        ({"lines": ["a", ""], "n_best": 4}, Asked(["a", ""], 4)),
        ({"text": "a", "attention": True}, Asked(["a"], 1, True, 2, None)),
        ({"text": "a", "attention": True, "layer": 1, "head": 8}, Asked(["a"], 1, True, 1, 8)),
        ({"text": "a" * 20}, Asked(["a" * 20])),
        ({"text": "\x00 \u2028 🙂"}, Asked(["\x00 \u2028 🙂"])),
    ],
)
def test_requests_that_are_answered(values, want):
    assert parse_translate(json.dumps(values).encode(), LIMITS, MODEL) == want


WRONG = [
    (b"", 400, "not JSON"),
    (b"[" * 60_000, 400, "not JSON"),
    (
        b'{"n_best": ' + b"9" * 5_000 + b"}",
        400,
        "limit (4300 digits) for integer string conversion.",
    ),
    (b'{"text": "a", "text": "b"}', 400, "'text' is there twice"),
    (b'{"text": "\xff"}', 400, "not UTF-8"),
    (b"[]", 400, "not a JSON object"),
    (b"{}", 400, '"text", a string, or "lines"'),
    (b'{"text": "a", "lines": ["a"]}', 400, '"text", a string, or "lines"'),
    (b'{"text": 1}', 400, '"text" is not a string'),
    (b'{"text": "a", "beam": 1}', 400, "'beam' is unknown"),
    (b'{"text": "a", "\xc3\xa9": 1}', 400, "'\\xe9' is unknown"),
    (b'{"text": "a", "' + b"x" * 500 + b'": 1}', 400, "is unknown"),
    (b'{"lines": "a"}', 400, '"lines" is not a list'),
    (b'{"lines": []}', 400, '"lines" is not a list'),
    (b'{"lines": ["a", null]}', 400, "Line 1 (from 0) is not a string"),
    (b'{"lines": ["a\\nb"]}', 400, "has a line end"),
    (b'{"lines": ["a\\rb"]}', 400, "has a line end"),
    (b'{"lines": ["a\\ud800"]}', 400, "surrogate"),
    (b'{"lines": ["a", "a", "a", "a"]}', 413, "at most 3"),
    (b'{"text": "aaaaaaaaaaaaaaaaaaaaa"}', 413, "21 characters: at most 20"),
    (b'{"text": "a", "n_best": 0}', 400, "1 to 4"),
    (b'{"text": "a", "n_best": 5}', 400, "1 to 4"),
    (b'{"text": "a", "n_best": true}', 400, "1 to 4"),
    (b'{"text": "a", "n_best": 1.5}', 400, "1 to 4"),
    (b'{"text": "a", "attention": 1}', 400, "true or false"),
    (b'{"text": "a", "layer": 1}', 400, '"attention": true'),
    (b'{"text": "a", "head": 1}', 400, '"attention": true'),
    (b'{"text": "a", "attention": true, "layer": 3}', 400, "1 to 2"),
    (b'{"text": "a", "attention": true, "head": 9}', 400, "1 to 8"),
]


@pytest.mark.parametrize(("body", "status", "words"), WRONG)
def test_others_are_refused_with_a_status_and_one_sentence(body, status, words):
    with pytest.raises(Refused) as refused:
        parse_translate(body, LIMITS, MODEL)
    message = str(refused.value)
    assert (refused.value.status, words in message) == (status, True), message
    assert "\n" not in message and message.isascii() and len(message) < 200


def test_requests_for_the_attention_of_a_pair():
    body = b'{"source": "a", "target": "b", "layer": 1, "head": 3}'
    assert parse_attention(body, LIMITS, MODEL) == Asked(["a"], 1, True, 1, 3, "b")
    for wrong in (b'{"source": "a"}', b'{"source": "a", "target": " "}', b'{"text": "a"}'):
        with pytest.raises(Refused):
            parse_attention(wrong, LIMITS, MODEL)
    for value, words in (("a\nb", "line end"), ("a" * 21, "21 characters: at most 20")):
        for name in ("source", "target"):
            pair = {"source": "a", "target": "b", name: value}
            with pytest.raises(Refused, match=f'"{name}" has .*{words}'):
                parse_attention(json.dumps(pair).encode(), LIMITS, MODEL)
    with pytest.raises(Refused, match="no encoder-decoder attention"):
        parse_attention(body, LIMITS, MODEL._replace(layers=0))


TWO = MODEL._replace(sources=2)


@pytest.mark.parametrize("line", ["a\tb", "a\t", "\tb", "", " "])
def test_a_line_has_a_tab_between_source_sentences(line):
    assert parse_translate(json.dumps({"lines": [line]}).encode(), LIMITS, TWO) == Asked([line])


@pytest.mark.parametrize(("line", "tabs"), [("a", 0), ("a\tb\tc", 2)])
def test_another_number_of_source_sentences_is_refused(line, tabs):
    asked = {"lines": ["a\tb", line]}
    given = {"source": line, "target": "x"}
    for parse, values in ((parse_translate, asked), (parse_attention, given)):
        with pytest.raises(Refused, match=f"has {tabs} tabs: the model reads 2 sentences") as error:
            parse(json.dumps(values).encode(), LIMITS, TWO)
        assert error.value.status == 400


# Answers, of a stub with a beam of 3 and two layers of attention ---------------------------------

WORDS = ["▁a", "▁b", "</s>"]  # the source's


class StubRun:
    """Translations "LINE 0", "LINE 1" and so on; layer 1 links words to a, layer 2 to b."""

    checkpoint = "40"
    config = SimpleNamespace(decode=SimpleNamespace(beam_size=3, method="beam", samples=2))
    fits = SimpleNamespace(encode=lambda *_, **__: None, cut=0)
    translator = SimpleNamespace(groups=1)
    loaded = SimpleNamespace(line_translator=lambda: StubRun.fits, translator=translator)

    def __init__(self, *target: str, score: float = -1.0) -> None:
        self.target, self.score = list(target), score

    def n_best(self, lines: list[str], n: int) -> list[list[Translation]]:
        return [[Translation(f"{line} {i}", self.score) for i in range(n)] for line in lines]

    def attention(self, source: str, target: str) -> Any:
        if not source.strip():
            raise ConfigError("The sentence is blank.")
        weights_NHLM = np.zeros((2, 1, len(self.target), len(WORDS)))
        weights_NHLM[0, ..., 0] = weights_NHLM[1, ..., 1] = 1.0
        return SimpleNamespace(kinds={"cross": Attention(weights_NHLM, self.target, WORDS, (1, 2))})


@pytest.mark.parametrize(("groups", "searches"), [(1, [1, 3]), (2, [2, 4])])
def test_requests_share_the_searches_whose_first_translations_are_theirs(
    groups, searches, monkeypatch
):
    """A diverse search takes as many of each group: 2 of 4 translations may be of one group."""
    seen = []
    run = StubRun()
    n_best = run.n_best
    monkeypatch.setattr(run.translator, "groups", groups)
    monkeypatch.setattr(run, "n_best", lambda lines, n: seen.append(n) or n_best(lines, n))
    asked = [Asked(["x", "y"], 2), Asked(["z"]), Asked(["u"], 3), Asked(["v"], 2)]
    answers = answer_all(run, asked)
    assert sorted(seen) == searches
    for one, answer in zip(asked, answers, strict=True):
        found = [[x["text"] for x in line["translations"]] for line in answer["lines"]]
        assert found == [[f"{line} {i}" for i in range(one.n_best)] for line in one.lines]


def test_a_score_that_json_does_not_have_is_null():
    [answer] = answer_all(StubRun(score=-np.inf), [Asked(["x"])])
    assert answer["lines"][0]["translations"] == [{"text": "x 0", "score": None}]


@pytest.mark.parametrize(("layer", "word"), [(1, 0), (2, 1)])
def test_words_are_linked_by_the_layer_that_was_asked_for(layer, word):
    """No subword begins in y; a blank line has no attention and harms no other."""
    asked = Asked(["x", " "], attention=True, layer=layer)
    [answer] = answer_all(StubRun("▁x▁y", "▁z", "</s>"), [asked])
    attention, blank = (line["attention"] for line in answer["lines"])
    assert (attention["layer"], attention["head"]) == (layer, None)
    assert attention["target_words"] == ["x", "y", "z"]
    assert attention["alignment"] == [word, None, word]
    assert blank is None


def test_a_given_pair_without_subwords_is_refused_with_the_reason():
    [refused] = answer_all(StubRun("▁z"), [Asked([" "], 1, True, 1, 1, "z")])
    assert isinstance(refused, Refused)
    assert (refused.status, str(refused)) == (400, "The sentence is blank.")


def test_bytes_that_are_no_character_have_weights_but_no_words():
    [answer] = answer_all(StubRun("<0xC3>", "</s>"), [Asked(["x"], 1, True, 1, 1, "y")])
    assert answer["checkpoint"] == "40" and len(answer["attention"]["weights"]) == 2
    assert answer["attention"]["target_words"] == answer["attention"]["alignment"] == []


@pytest.mark.parametrize(
    ("changes", "layers", "heads"),
    [({}, 3, 3), ({"decoder": "recurrent"}, 0, 1), ({"decoder": "convolutional"}, 3, 1)],
)
def test_a_model_s_layers_and_heads_are_those_of_encoder_decoder_attention(changes, layers, heads):
    model = tiny_model(num_encoder_layers=2, num_decoder_layers=3, **changes)
    config = SimpleNamespace(decode=StubRun.config.decode, model=model.config)
    run: Any = SimpleNamespace(config=config, loaded=SimpleNamespace(model=model))
    assert model.config.num_heads == 3 and model_of(run) == Model(3, layers, heads)
