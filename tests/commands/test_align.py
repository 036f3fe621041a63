"""The `align` command: links of given translations, by a layer's attention."""

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.api import Run, load
from transformer_jax.commands import align as command
from transformer_jax.commands.align import align
from transformer_jax.config.changes import with_values
from transformer_jax.errors import UserError
from transformer_jax.evaluation.alignment import align_words, error_rate, links
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.hmm_aligner import hmm_alignments
from transformer_jax.text.words import spelled_words, subword_words

SOURCE = ["The old man sleeps .", "A child reads two books .", "", "No ."]
TARGET = ["Der alte Mann schläft .", "Ein Kind liest zwei Bücher .", "Ja", ""]


def written(folder, **texts):
    return {name: str(runs.write_lines(folder / name, text)) for name, text in texts.items()}


@pytest.fixture
def files(tmp_path):
    return written(tmp_path, src=SOURCE, tgt=TARGET)


def built_in_texts(split, pairs):
    """The pairs, their lines, and their links as Pharaoh writes them."""
    drawn = built_in_pairs(split, pairs)
    src = [" ".join(pair.src_words) for pair in drawn]
    tgt = [" ".join(pair.tgt_words) for pair in drawn]
    gold = [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in drawn]
    return drawn, {"src": src, "tgt": tgt, "gold": gold}


def test_links_are_those_of_the_layer_s_mean(files, capsys, monkeypatch):
    monkeypatch.setattr(command, "LINES", 3)
    run = str(runs.trained_run())
    want = load(run).align(SOURCE, TARGET)
    capsys.readouterr()
    align(run, **files, layer=1)
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 5 and lines[2:] == ["", "", ""]
    for line, found in zip(lines, want, strict=False):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert links == [(i, j) for j, i in enumerate(found.mean_NJ[0]) if i >= 0]
    assert [link.split("-")[1] for link in lines[1].split()] == list("012345")
    align(run, **files)
    assert capsys.readouterr().out.split("\n") == lines, "one layer: the watched one"


def test_a_run_that_learned_in_full_context_aligns_in_full_context():
    run = load(runs.trained_run())
    src, tgt, _ = built_in_texts("test", 20)[1].values()
    config = with_values(run.config, {"train.alignment_context": "full"})
    found = Run(run.loaded._replace(config=config)).align(src, tgt)
    loaded = run.loaded
    lines = loaded.line_translator()
    ids = lines.encode(src), lines.encode(tgt, is_target=True)
    parts = loaded.model, loaded.translator.params, loaded.vocabulary
    want = list(align_words(*parts, *ids, full_context=True))
    past = run.align(src, tgt)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one.heads_NHJ, other.heads_NHJ)
    assert any((a.heads_NHJ != b.heads_NHJ).any() for a, b in zip(found, past, strict=True))


def test_error_rates_against_given_links(tmp_path, caplog):
    """They are those of evaluation/alignment.py, which the built-in corpus's links test."""
    run = load(runs.trained_run())
    pairs, texts = built_in_texts("test", 20)
    files = written(tmp_path, **texts)
    with caplog.at_level("INFO"):
        align(str(runs.trained_run()), **files)
    found = [one.mean_NJ for one in run.align(texts["src"], texts["tgt"])]
    [want] = error_rate(found, [pair.alignment for pair in pairs])
    assert f"alignment error rate of layers 1 to 1: {want:.3f}" in caplog.text
    runs.write_lines(tmp_path / "gold", [*texts["gold"][:-1], "0-99"])
    with pytest.raises(UserError, match="line 20: the link 0-99 names target word 99"):
        align(str(runs.trained_run()), **files)


@pytest.mark.slow("compiles explanations")
def test_links_by_an_explanation_are_those_of_its_largest_shares(tmp_path, capsys, caplog):
    run = load(runs.trained_run())
    _, texts = built_in_texts("test", 4)
    files = written(tmp_path, **texts)
    with caplog.at_level("INFO"):
        align(str(runs.trained_run()), **files, explain="gradient")
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert "alignment error rate by gradient: " in caplog.text
    for line, src, tgt in zip(lines, texts["src"], texts["tgt"], strict=True):
        cross = run.attention(src, tgt, explain="gradient").kinds["cross"]
        words = spelled_words(cross.attended), spelled_words(cross.attending)
        numbers = subword_words(cross.attended, words[0]), subword_words(cross.attending, words[1])
        [[want_J]] = links(cross.weights_NHLM, *numbers)
        assert line == " ".join(f"{i}-{j}" for j, i in enumerate(want_J) if i >= 0)
    for more, message in [({"layer": 1}, "leave --layer out"), ({"explain": "luck"}, "luck")]:
        with pytest.raises(UserError, match=message):
            align(str(runs.trained_run()), **files, **{"explain": "alti", **more})


def test_without_a_run_the_links_are_those_of_the_lines_own_aligner(tmp_path, capsys, caplog):
    pairs, texts = built_in_texts("train", 400)
    files = written(tmp_path, **texts)
    words = [(list(pair.src_words), list(pair.tgt_words)) for pair in pairs]
    with caplog.at_level("INFO"):
        align(**files)
    want = hmm_alignments(words)
    printed = capsys.readouterr().out.split("\n")
    assert printed == [*(" ".join(f"{i}-{j}" for i, j in links) for links in want), ""]
    right = sum(len({*one} & {*pair.alignment}) for one, pair in zip(want, pairs, strict=True))
    both = sum(map(len, want)) + sum(len(pair.alignment) for pair in pairs)
    assert f"alignment error rate: {1 - 2 * right / both:.3f}" in caplog.text


def test_too_much_text_is_refused(files, monkeypatch):
    monkeypatch.setattr(command, "MOST_CELLS", 10)
    with pytest.raises(UserError, match="4 pairs have 61 pairs of words, more than 10"):
        align(**files)


def test_layers_are_counted_from_1_and_the_watched_one_is_the_default():
    assert [command._number(layer, 3, 1) for layer in (1, 2, 3, None)] == [0, 1, 2, 1]
    assert command._number(None, 1, 4) == 0, "a recurrent decoder attends in one layer"


def test_words_that_the_vocabulary_spells_otherwise_are_counted(tmp_path, caplog):
    text = ["a\u00a0b c"]
    align(str(runs.trained_run()), **written(tmp_path, src=text, tgt=text))
    assert "1 lines have other words" in caplog.text


@pytest.mark.parametrize(
    ("words", "of_line", "want"),
    [
        ("The man sleeps.", "The man sleeps.", False),
        ("The man sleeps.", "The \u200b man sleeps.", True),
        ("The man", "The man \u200b", False),
        ("The man sle", "The man sleeps well.", False),  # it was cut
        ("a b c", "a\u00a0b c", True),
        ("", "", False),
    ],
)
def test_a_word_s_number_is_that_in_the_line_or_a_warning_says_so(words, of_line, want):
    assert command.is_renumbered(words.split(" "), of_line.split(" ")) is want
