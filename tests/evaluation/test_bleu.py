"""BLEU against an independent count, perl's own outputs, and worked values."""

import json
import math
import random
from collections import Counter

import pytest

from transformer_jax.errors import DataError
from transformer_jax.evaluation.bleu import (
    as_dict,
    format_scores,
    lowercased_tokens,
    paper_tokens,
    score,
    split_compounds,
    tokens_of_language,
)

AT = " ##AT##-##AT## "


def plain_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. 2002 over words, one reference, no smoothing, 0 to 100."""
    logs = []
    for n in range(1, 5):
        matches = total = 0
        for pair in zip(hypotheses, references, strict=True):
            hypothesis, reference = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (line.split() for line in pair)
            )
            total += sum(hypothesis.values())
            matches += sum((hypothesis & reference).values())
        if matches == 0:
            return 0.0
        logs.append(math.log(matches / total))
    lengths = [sum(len(line.split()) for line in lines) for lines in (hypotheses, references)]
    return 100 * math.exp(min(0, 1 - lengths[1] / lengths[0]) + sum(logs) / 4)


def perturbed(lines: list[str], seed: int) -> list[str]:
    """Lines with a word dropped or repeated."""
    rng = random.Random(seed)
    out = []
    for line in lines:
        words = line.split()
        at = rng.randrange(len(words))
        out.append(" ".join(words[:at] + words[at : at + 1] * rng.choice((0, 2)) + words[at + 1 :]))
    return out


REFERENCES = [
    "Der „Rich-Text“-Editor kostet 3,50 Euro, sagt Dr. Müller.",
    "Das Haus-zu-Haus-Projekt der EU endet am 3. Mai 2014 in Köln.",
    "Er sagt: „Ich habe's nicht gewusst“ & geht nach Hause.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
]

# (line, what `perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'` of perl 5.36 printed)
SPLIT_BY_PERL = [
    ("rich-text format", f"rich{AT}text format"),
    ("ab-cd-ef", f"ab{AT}cd{AT}ef"),
    ("a-b-c", f"a{AT}b-c"),
    ("a-b-c-d", f"a{AT}b-c{AT}d"),
    ("a-ü-b", f"a{AT}ü{AT}b"),
    ("a--b", f"a{AT}-b"),
    ("a---b", f"a{AT}--b"),
    ("- a-b -", f"- a{AT}b -"),
    ("- -x y- -", "- -x y- -"),
]


@pytest.mark.parametrize(("line", "split"), SPLIT_BY_PERL)
def test_compounds_split_as_perl_splits_them(line, split):
    assert split_compounds(line) == split


@pytest.mark.parametrize(
    ("tokens_of", "language", "lines", "want"),
    [
        (
            paper_tokens,
            "de",
            REFERENCES[:3],
            [
                f"Der &quot; Rich{AT}Text &quot; -Editor kostet 3,50 Euro , sagt Dr. Müller .",
                f"Das Haus{AT}zu{AT}Haus{AT}Projekt der EU endet am 3. Mai 2014 in Köln .",
                "Er sagt : &quot; Ich habe &apos; s nicht gewusst &quot; &amp; geht nach Hause .",
            ],
        ),
        (
            paper_tokens,
            "fr",
            ["L'avant-projet, dit-il, est « prêt » (“oui”)."],
            ["L&apos; avant-projet , dit-il , est « prêt » ( “ oui ” ) ."],
        ),
        # In the order of the Multi30k data set's own script: lowercase, punctuation, tokens.
        (
            lowercased_tokens,
            "de",
            ["Ein Mann – „groß“ – ruft:  “Ja”, d. h. ÜBER 3,5 km!"],
            ["ein mann - &quot; groß &quot; - ruft : &quot; ja &quot; , d. h. über 3,5 km !"],
        ),
        (
            lowercased_tokens,
            "fr",
            ["L'Île d'Yeu « est » là"],
            ["l&apos; île d&apos; yeu &quot; est &quot; là"],
        ),
    ],
    ids=["German: plain quotes, split compounds", "French: neither", "lowercased", "in French"],
)
def test_tokens_are_those_of_moses_scripts(tokens_of, language, lines, want):
    assert tokens_of(lines, language) == want


def test_worked_values():
    # Both: 4-grams 3/4, trigrams 4/5, bigrams 5/6, words 6/7, and as long as the reference:
    # (6/7 * 5/6 * 4/5 * 3/4)^(1/4) = (3/7)^(1/4).
    line = "der Hund läuft über die grüne"
    scores = score([f"{line} Wiese"], [f"{line} Wand"], "en", "de")
    assert scores.bleu == pytest.approx(100 * (3 / 7) ** 0.25)
    assert scores.paper_bleu == pytest.approx(100 * (3 / 7) ** 0.25)
    assert scores.brevity_penalty == 1.0
    # Every n-gram right, 4 words of 5: exp(1 - 5/4).
    short = score(["der Hund läuft über"], ["der Hund läuft über Gras"], "en", "de")
    assert short.bleu == pytest.approx(100 * math.exp(-0.25))
    assert short.brevity_penalty == pytest.approx(math.exp(-0.25))


@pytest.mark.parametrize("language", ["de", "fr", "en"])
def test_moses_kinds_of_bleu_are_plain_bleu_over_their_tokens(language):
    references = REFERENCES * 20
    hypotheses = perturbed(references, seed=1)
    got = score(hypotheses, references, "cs", language)
    kinds = {paper_tokens: got.paper_bleu, lowercased_tokens: got.lowercased_bleu}
    for tokens_of, found in kinds.items():
        want = plain_bleu(tokens_of(hypotheses, language), tokens_of(references, language))
        assert 50 < want < 95
        assert found == pytest.approx(want, abs=1e-9)


def test_only_lowercased_bleu_is_not_cased():
    scores = score([line.upper() for line in REFERENCES], REFERENCES, "en", "de")
    assert scores.bleu < 60 and scores.paper_bleu < 60 and scores.lowercased_bleu > 90


def test_paper_bleu_is_not_smoothed_and_bleu_is():
    scores = score(["der Hund läuft über Wiesen"], ["der Hund läuft unter Wiesen"], "en", "de")
    assert scores.paper_bleu == 0.0
    assert scores.bleu > 30


def test_signatures_and_direction_say_what_was_done():
    german, french = (score(REFERENCES, REFERENCES, "en", tgt) for tgt in ("de", "fr"))
    assert (german.direction, german.sentences) == ("en→de", 4)
    for signature, steps in [
        (german.bleu_signature, "nrefs:1|case:mixed|tok:13a|smooth:exp"),
        (german.paper_bleu_signature, "punct:ascii|tok:moses-de|compounds:split|smooth:none"),
        (french.paper_bleu_signature, "punct:raw|tok:moses-fr|compounds:whole"),
        (german.chrf_signature, "nc:6|nw:0"),
    ]:
        assert set(steps.split("|")) <= set(signature.split("|"))
    assert german.paper_bleu_signature.startswith("paper-bleu|nrefs:1|case:mixed|")
    assert german.lowercased_bleu_signature.startswith(
        "lowercased-bleu|nrefs:1|case:lc|punct:normalized|tok:moses-de|smooth:none|"
    )


def test_a_language_without_moses_rules_has_no_paper_bleu():
    scores = score(["wa"], ["wa"], "en", "tlh")
    assert (scores.paper_bleu, scores.paper_bleu_signature) == (None, None)
    assert (scores.lowercased_bleu, scores.lowercased_bleu_signature) == (None, None)
    assert "paper" not in format_scores(scores)
    assert as_dict(scores)["paper_bleu"] is None


@pytest.mark.parametrize(
    ("language", "tokens"),
    [("zh", "zh"), ("zh-TW", "zh"), ("ja", "char"), ("th", "char"), ("cmn_Hans", "zh")]
    + [("jpn", "char"), ("zho", "zh"), ("tha", "char")],
)
def test_text_without_spaces_has_tokens_of_its_own(language, tokens):
    text = ["我们今天去北京。", "他买了一本书。"]
    scores = score(text, text, "en", language)
    assert scores.bleu == pytest.approx(100) and f"|tok:{tokens}|" in scores.bleu_signature
    assert scores.paper_bleu is None and scores.lowercased_bleu is None
    near = score(["我们今天去上海。", text[1]], text, "en", language)
    assert 20 < near.bleu < 90
    assert tokens_of_language("de") == tokens_of_language("ko") == "13a"


def test_every_line_shown_names_score_direction_and_signature_and_json_has_every_field():
    scores = score(perturbed(REFERENCES, seed=0), REFERENCES, "en", "de")
    lines = [line.split() for line in format_scores(scores).splitlines()]
    assert lines == [
        ["BLEU", f"{scores.bleu:.2f}", "en→de", scores.bleu_signature],
        ["paper", "BLEU", f"{scores.paper_bleu:.2f}", "en→de", scores.paper_bleu_signature],
        ["lowercased", f"{scores.lowercased_bleu:.2f}", "en→de", scores.lowercased_bleu_signature],
        ["chrF2", f"{scores.chrf:.2f}", "en→de", scores.chrf_signature],
    ]
    assert json.loads(json.dumps(as_dict(scores))) == as_dict(scores)
    assert as_dict(scores).keys() == {name for name in scores._fields if name not in ("wer", "cer")}


def test_of_what_is_read_error_rates_are_shown_too():
    scores = score(["one two", "three"], ["one two", "three four"], "wavs", "en", is_read=True)
    *_, words, characters = format_scores(scores).splitlines()
    assert words.split()[:3] == ["WER", "25.00", "wavs→en"] and "95 % interval 0.00 to" in words
    assert characters.split()[:2] == ["CER", f"{100 * 5 / 17:.2f}"]
    assert as_dict(scores)["wer"] == scores.wer._asdict()


def test_an_empty_translation_counts_against_the_score_and_does_not_crash():
    whole = score(REFERENCES, REFERENCES, "en", "de")
    scores = score([*REFERENCES[:3], ""], REFERENCES, "en", "de")
    assert whole.bleu == pytest.approx(100)
    assert scores.bleu < 85
    assert scores.paper_bleu < 85
    assert score([""] * 4, REFERENCES, "en", "de").paper_bleu == 0.0


@pytest.mark.parametrize(
    ("hypotheses", "references", "words"),
    [
        (REFERENCES[:3], REFERENCES, "en→de: 3 translations for 4 references"),
        ([], [], "en→de: no sentences to score"),
        (["", " ", ""], ["", " ", ""], "en→de: the references have no text"),
        (["a", "b"], "a b c", "takes lists of sentences"),
        (["a", "b"], ["a", "b\udcff"], "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_scored_is_a_user_s_error(hypotheses, references, words):
    with pytest.raises(DataError, match=words):
        score(hypotheses, references, "en", "de")


def test_with_several_references_each_line_may_agree_with_any_of_them():
    first = ["Der Hund schläft heute im Haus .", "Ein Mann liest."]
    second = ["Ein Tier ruht dort drinnen .", "Die Frau kauft heute ein neues Buch ."]
    hypotheses = [first[0], second[1]]
    both = score(hypotheses, first, "en", "de", [second])
    assert both.bleu == pytest.approx(100) and both.paper_bleu == pytest.approx(100)
    assert both.chrf == pytest.approx(100)
    for alone in (first, second):
        assert score(hypotheses, alone, "en", "de").bleu < 80
    assert both == score(hypotheses, second, "en", "de", [first])
    signatures = (both.bleu_signature, both.paper_bleu_signature, both.chrf_signature)
    assert all("nrefs:2|" in signature for signature in signatures)
    with pytest.raises(DataError, match="2 translations for 1 references"):
        score(hypotheses, first, "en", "de", [second[:1]])
