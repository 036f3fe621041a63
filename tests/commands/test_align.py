"""The `align` command: links of given translations, by a layer's attention."""

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.api import Run, load
from transformer_jax.commands import align as command
from transformer_jax.commands.align import align
from transformer_jax.config.changes import with_values
from transformer_jax.errors import UserError
from transformer_jax.evaluation.alignment import align_words, error_rate
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.hmm_aligner import hmm_alignments

SOURCE = ["The old man sleeps .", "A child reads two books .", "", "No ."]
TARGET = ["Der alte Mann schläft .", "Ein Kind liest zwei Bücher .", "Ja", ""]


@pytest.fixture
def files(tmp_path):
    names = {"src": SOURCE, "tgt": TARGET}
    return {name: str(runs.write_lines(tmp_path / name, text)) for name, text in names.items()}


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
    pairs = built_in_pairs("test", 20)
    src = [" ".join(pair.src_words) for pair in pairs]
    tgt = [" ".join(pair.tgt_words) for pair in pairs]
    config = with_values(run.config, {"train.alignment_context": "full"})
    found = Run(run.loaded._replace(config=config)).align(src, tgt)
    loaded = run.loaded
    lines = run.loaded.line_translator()
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
    pairs = built_in_pairs("test", 20)
    src = [" ".join(pair.src_words) for pair in pairs]
    tgt = [" ".join(pair.tgt_words) for pair in pairs]
    gold = [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs]
    lines = {"src": src, "tgt": tgt, "gold": gold}
    files = {name: str(runs.write_lines(tmp_path / name, text)) for name, text in lines.items()}
    with caplog.at_level("INFO"):
        align(str(runs.trained_run()), **files)
    found = [one.mean_NJ for one in run.align(src, tgt)]
    [want] = error_rate(found, [pair.alignment for pair in pairs])
    assert f"alignment error rate of layers 1 to 1: {want:.3f}" in caplog.text
    runs.write_lines(tmp_path / "gold", [*gold[:-1], "0-99"])
    with pytest.raises(UserError, match="line 20: the link 0-99 names target word 99"):
        align(str(runs.trained_run()), **files)


def test_without_a_run_the_links_are_those_of_the_lines_own_aligner(tmp_path, capsys, caplog):
    pairs = built_in_pairs("train", 400)
    words = [(list(pair.src_words), list(pair.tgt_words)) for pair in pairs]
    gold = [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs]
    lines = {"src": [" ".join(w) for w, _ in words], "tgt": [" ".join(w) for _, w in words]}
    lines["gold"] = gold
    files = {name: str(runs.write_lines(tmp_path / name, text)) for name, text in lines.items()}
    with caplog.at_level("INFO"):
        align(**files)
    want = hmm_alignments(words)
    printed = capsys.readouterr().out.split("\n")
    assert printed == [*(" ".join(f"{i}-{j}" for i, j in links) for links in want), ""]
    right = sum(len({*one} & {*pair.alignment}) for one, pair in zip(want, pairs, strict=True))
    both = sum(map(len, want)) + sum(len(pair.alignment) for pair in pairs)
    assert f"alignment error rate: {1 - 2 * right / both:.3f}" in caplog.text


def test_what_is_of_a_run_needs_one_and_too_much_text_is_refused(files, monkeypatch):
    with pytest.raises(UserError, match="--layer and --checkpoint are of a run"):
        align(**files, layer=1)
    monkeypatch.setattr(command, "MOST_CELLS", 10)
    with pytest.raises(UserError, match="4 pairs have 61 pairs of words, more than 10"):
        align(**files)


def test_a_layer_that_is_not_there_is_refused(files):
    for layer in (0, 2):
        with pytest.raises(UserError, match="the decoder has layers 1 to 1"):
            align(str(runs.trained_run()), **files, layer=layer)
    with pytest.raises(UserError, match="--checkpoint=7 is not there"):
        align(str(runs.trained_run()), **files, checkpoint="7")


def test_layers_are_counted_from_1_and_the_watched_one_is_the_default():
    assert [command._number(layer, 3, 1) for layer in (1, 2, 3, None)] == [0, 1, 2, 1]
    assert command._number(None, 1, 4) == 0, "a recurrent decoder attends in one layer"


def test_words_that_the_vocabulary_spells_otherwise_are_counted(tmp_path, caplog):
    src, tgt = (str(runs.write_lines(tmp_path / name, ["a\u00a0b c"])) for name in "st")
    align(str(runs.trained_run()), src=src, tgt=tgt)
    assert "1 lines have more words" in caplog.text
