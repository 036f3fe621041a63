"""What requests may ask for, and the status of those that are refused."""

import json

import pytest

from transformer_jax.serving.asked import (
    Asked,
    Limits,
    Model,
    Refused,
    parse_attention,
    parse_translate,
)

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
    (b"{", 400, "not JSON"),
    (b"[" * 60_000, 400, "not JSON"),
    (
        b'{"n_best": ' + b"9" * 5_000 + b"}",
        400,
        "limit (4300 digits) for integer string conversion.",
    ),
    (b'{"text": "a", "text": "b"}', 400, "'text' is there twice"),
    (b'{"text": "\xff"}', 400, "not UTF-8"),
    (b"[]", 400, "not a JSON object"),
    (b"null", 400, "not a JSON object"),
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
    (b'{"text": "a", "n_best": NaN}', 400, "1 to 4"),
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
