"""A run in a Python program: the example of docs/python.md, and each method beside the commands."""

import functools
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import transformer_jax
from tests import tiny_runs as runs
from tests.commands.test_import import imported
from tests.fixtures.cases import refused
from transformer_jax.api import Run, load, train
from transformer_jax.commands.average import average
from transformer_jax.config.schema import Config
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError, RunError, UserError
from transformer_jax.evaluation.alignment import links
from transformer_jax.evaluation.bleu import score
from transformer_jax.text.words import spelled_words, subword_words

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
SOURCES = ["The old man sleeps .", "A child reads ."]


@functools.cache
def run() -> Run:
    return load(runs.trained_run(), beam_size=2)


@pytest.mark.slow("trains a run")
def test_the_page_s_example_runs_away_from_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(runs.trained_run())
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(names["targets"]) == 2
    assert len(capsys.readouterr().out.splitlines()) >= 2 * 3 + 2


def test_importing_the_package_imports_no_jax_and_load_is_found_when_used():
    code = (
        "import sys, transformer_jax\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'jax']\n"
        "assert transformer_jax.load.__module__ == 'transformer_jax.api'\n"
        "assert 'jax' in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (transformer_jax.load, transformer_jax.Run) == (load, Run)
    assert transformer_jax.train is train
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = transformer_jax.lode


def test_the_package_names_what_a_program_calls():
    assert {"load", "train", "Run", "__version__"} <= set(dir(transformer_jax))
    assert (Path(transformer_jax.__file__).parent / "py.typed").exists()


def test_a_run_says_what_it_is():
    folder = runs.trained_run()
    assert re.fullmatch(
        rf"<Run {folder}: en→de, [0-9,]+ parameters, checkpoint {runs.STEPS}>", repr(run())
    )


def test_scores_are_of_the_given_texts_or_of_the_run_s_test_split(monkeypatch):
    src, tgt = (runs.read_lines(runs.tiny_corpus() / f"test.{side}") for side in ("en", "de"))
    wrong_first = ["Nein .", *tgt[1:]]
    answers = dict(zip(src, wrong_first, strict=True))
    monkeypatch.setattr(Run, "translate", lambda _, lines: [answers[line] for line in lines])
    found = run().evaluate()
    assert found == score(wrong_first, tgt, "en", "de") and 50 < found.bleu < 100
    assert run().evaluate(src[1:], tgt[1:]).bleu == pytest.approx(100)
    with pytest.raises(ConfigError, match="belong together"):
        run().evaluate(src)
    with pytest.raises(ConfigError, match=r"split=\['test'\]: name a split"):
        run().evaluate(split=["test"])  # type: ignore[arg-type]


def test_an_error_names_arguments_but_leaves_commands_whole(tmp_path):
    with pytest.raises(RunError, match="`python -m transformer_jax train --config=CONFIG --workd"):
        load(tmp_path / "none")


def test_a_run_is_loaded_in_each_process():
    with pytest.raises(RunError, match="call transformer_jax.load in each process"):
        pickle.dumps(run())


def test_an_average_that_is_older_than_the_run_is_warned_of(tmp_path, caplog):
    folder = runs.copy_of_run(tmp_path / "run")
    average(str(folder), last=2)
    assert load(folder, "average").checkpoint == "40-last2" and "is older" not in caplog.text
    (folder / "checkpoints" / "40").rename(folder / "checkpoints" / "50")
    load(folder, "average")
    assert "averages/40-last2 is older than checkpoint 50" in caplog.text


def test_an_ensemble_has_one_direction(tmp_path):
    other = runs.copy_of_run(tmp_path / "other", data__src="de", data__tgt="en")
    with pytest.raises(ConfigError, match="other translates de→en, and the first run en→de"):
        load([runs.trained_run(), other])


def test_a_newest_checkpoint_that_is_gone_is_warned_of(tmp_path, caplog):
    folder = runs.copy_of_run(tmp_path / "run")
    (folder / "checkpoints" / "50.sha256.json").write_text("{}")
    assert load(folder).checkpoint == str(runs.STEPS)
    assert "checkpoints/50 is gone; using the one of step 40" in caplog.text


def test_a_layer_and_a_head_are_drawn():
    found = run().attention(SOURCES[0])
    layers, heads, *_ = found.kinds["cross"].weights_NHLM.shape
    figure = found.plot()
    assert figure.get_suptitle() == f"Encoder-decoder attention, layer {layers} of {layers}"
    assert len(figure.axes) == heads + 1  # and the scale
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook asks for it
    one = found.plot("encoder", layer=1, head=2)
    assert one.axes[0].get_title() == "head 2"
    drawn = one.axes[0].images[0].get_array()
    np.testing.assert_array_equal(drawn, found.kinds["encoder"].weights_NHLM[0, 1])
    for wrong, message in (
        ({"kind": "all"}, "kind='all': this model has"),
        ({"kind": ["cross"]}, r"kind=\['cross'\]: this model has"),
        ({"layer": 1.0}, "layer=1.0 is not a whole number"),
        ({"layer": True}, "layer=True is not a whole number"),
        ({"head": "1"}, "head='1' is not a whole number"),
        ({"layer": 0}, "layer=0: this model has layers 1 to"),
        ({"head": 9}, "^head=9: this model has heads 1 to 2"),  # no flag of a command
    ):
        with pytest.raises(ConfigError, match=message):
            found.plot(**wrong)


@pytest.mark.parametrize("level", [logging.NOTSET, logging.WARNING])
def test_training_from_python_shows_its_log_unless_the_program_has_set_it_up(
    level, monkeypatch, capsys
):
    logger = logging.getLogger("transformer_jax")
    for name, value in (("level", level), ("propagate", True), ("handlers", [])):
        monkeypatch.setattr(logger, name, value)  # as in a new process
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    logger.manager._clear_cache()
    train(runs.tiny_config(), runs.trained_run())
    shown = capsys.readouterr().err
    assert ("nothing to do: trained to step" in shown) == (level == logging.NOTSET)
    assert (logger.level, logger.propagate, logger.handlers) == (level, True, [])
    logger.manager._clear_cache()


def test_a_program_can_set_up_logging_after_a_run_is_loaded(monkeypatch):
    """Orbax reads the checkpoint, and its log would give the root logger a handler."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    load(runs.trained_run())
    assert logging.getLogger().handlers == []


def test_translations_are_those_of_search_and_their_scores_are_found_again():
    found = run().n_best([*SOURCES, " "], 2)
    assert [len(translations) for translations in found] == [2, 2, 1]
    assert run().translate([*SOURCES, " "]) == [best.text for best, *_ in found]
    assert [one.text for [one] in run().n_best(SOURCES, 1)] == run().translate(SOURCES)
    assert found[2] == [("", 0.0)]
    assert all(first.score >= second.score for first, second in found[:2])


def test_scores_of_given_translations():
    scored, blank, wrong = run().score([SOURCES[0], "", ""], ["Der alte Mann .", "", "x"])
    penalty = ((5 + scored.length) / 6) ** run().config.decode.length_penalty
    assert scored.log_prob < scored.score == pytest.approx(scored.log_prob / penalty)
    assert blank == (0.0, 0.0, 0) and wrong.score == wrong.log_prob == -np.inf


def test_logits_make_the_log_probability_of_a_translation():
    targets = ["Der alte Mann .", "Ein Kind liest zwei neue Bücher ."]
    scored = run().score(SOURCES, targets)
    for pair, want in zip(run().logits(SOURCES, targets), scored, strict=True):
        shifted_LV = pair.logits_LV - pair.logits_LV.max(1, keepdims=True)
        log_probs_LV = shifted_LV - np.log(np.exp(shifted_LV).sum(1, keepdims=True))
        assert pair.logits_LV.shape == (want.length, run().loaded.vocabulary.size)
        assert len(pair.subwords) == want.length and pair.subwords[-1] == "</s>"
        own = log_probs_LV[np.arange(want.length), pair.ids_L].sum()
        assert own == pytest.approx(want.log_prob, rel=1e-5)
    [blank] = run().logits([""], [""])
    assert blank.logits_LV.shape[0] == 1


def test_logits_are_as_wide_as_the_target_s_vocabulary():
    two = load(imported("two"))
    [pair] = two.logits(["a dog"], ["ein Hund"])
    sizes = two.loaded.vocabulary.sizes
    assert pair.logits_LV.shape[1] == sizes.target != sizes.source


@pytest.mark.slow("trains runs")
def test_training_from_python_is_that_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = runs.tiny_config()
    trained = transformer_jax.train(config, "~/run")
    assert (tmp_path / "run" / "config.json").exists()
    assert trained.translate(SOURCES) == load(runs.trained_run()).translate(SOURCES)
    again = transformer_jax.train(config, tmp_path / "run", {"train.steps": runs.STEPS + 1})
    assert again.checkpoint == str(runs.STEPS + 1)


def test_settings_of_search_are_those_given_and_the_rest_the_run_s(monkeypatch):
    assert run().config.decode.beam_size == 2
    home, name = runs.trained_run().parent, runs.trained_run().name
    monkeypatch.setenv("HOME", str(home))
    assert load(f"~/{name}", checkpoint=runs.STEPS).config.decode.beam_size == 4
    assert run().checkpoint == str(runs.STEPS)


def test_attention_without_a_translation_is_refused(monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *_: [[]])
    with pytest.raises(RunError, match="The model finds no translation"):
        run().attention("x")


@pytest.mark.parametrize(
    "call",
    [
        lambda line: run().translate([line]),
        lambda line: run().score([line], ["x"]),
        lambda line: run().attention(line, "x"),
    ],
)
def test_a_line_that_is_cut_is_warned_of(call, caplog):
    call("x" * 99)
    assert "1 lines have more than decode.max_length=64 subwords" in caplog.text


def test_words_are_aligned_by_the_weights_of_the_pair():
    targets = ["Der alte Mann schläft .", "Ein Kind ☃ liest ."]
    pairs = run().align(SOURCES, targets)
    for source, target, pair in zip(SOURCES, targets, pairs, strict=True):
        assert (pair.src_words, pair.tgt_words) == (source.split(), target.split())
        cross = run().attention(source, target).kinds["cross"]
        places = (
            subword_words(cross.attended, source.split()),
            subword_words(cross.attending, target.split()),
        )
        np.testing.assert_array_equal(pair.heads_NHJ, links(cross.weights_NHLM, *places))
        mean = cross.weights_NHLM.mean(1, keepdims=True)
        np.testing.assert_array_equal(pair.mean_NJ, links(mean, *places)[:, 0])
        assert pair.heads_NHJ.shape == (1, 2, len(pair.tgt_words))
    assert run().align([], []) == []


def test_no_word_of_a_blank_side_is_linked():
    no_target, no_source = run().align(["a b", " "], ["", "a b"])
    assert no_target.heads_NHJ.shape == (1, 2, 0) and no_target.mean_NJ.shape == (1, 0)
    assert (no_source.heads_NHJ == -1).all() and no_source.heads_NHJ.shape == (1, 2, 2)
    assert (no_source.mean_NJ == [-1, -1]).all()


def test_words_are_between_spaces_whatever_the_subwords_are():
    pieces = ["▁", "a", "b▁c", "<0xC3>", "<0xA9>", "▁▁d", "</s>"]
    assert spelled_words(pieces) == ["ab", "cé", "d"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run().translate("The old man ."), "takes a list of sentences"),
        (lambda: run().n_best(SOURCES, 3), "n_best=3 is not in 1..2"),
        (lambda: run().translate(pd.DataFrame({"en": [""]})), "list of sentences, not DataFrame"),
        (lambda: run().n_best(SOURCES, 0), "n_best=0 is below 1"),
        (lambda: run().score(SOURCES, ["x"]), "2 sources and 1 targets"),
        (lambda: run().attention(" "), "The sentence is blank"),
        (lambda: run().attention("x", ""), "The target is blank"),
        (lambda: run().translate(["x", None]), r"Sentence 1 \(from 0\) is of type NoneType: None"),
        (lambda: run().score(["x"], [3.5]), r"Sentence 0 \(from 0\) is of type float: 3.5"),
        (lambda: run().attention(["x"]), "is of type list"),
        (lambda: run().align(["x"], [b"y"]), "is of type bytes"),
        (lambda: run().n_best(SOURCES, "2"), "n_best='2' is not a whole number"),
        (lambda: run().n_best(SOURCES, True), "n_best=True is not a whole number"),
        (lambda: run().translate(None), "takes a list of sentences, not NoneType"),
        (lambda: run().translate(b"x"), "takes a list of sentences, not one"),
        (lambda: run().translate(np.array("x")), "takes a list of sentences, not ndarray"),
        (lambda: run().translate({"x": 1}), "takes a list of sentences, not dict"),
        (lambda: run().translate({"x"}), "takes a list of sentences, not set"),
        (lambda: train(Config(), 3), "cannot name a run's folder"),
        (lambda: load(""), "'' names no run's folder: give one"),
        (lambda: load([]), r"\[\] names no run's folder: give one"),
        (lambda: load(["a\0b"]), "'a.x00b' names no run's folder: give one"),
        (lambda: load(None), "None names no run's folder: give one"),
        (lambda: load(runs.trained_run(), beam=2), "decode.beam"),
        (lambda: load(runs.trained_run(), num_layers=2), "num_layers cannot change in a trained"),
        (lambda: load(runs.trained_run(), **{"decode.beam_size": 2}), "own names: beam_size"),
        (lambda: load(runs.trained_run(), checkpoint=7), "7"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_model_without_such_attention_is_refused(monkeypatch):
    monkeypatch.setattr("transformer_jax.api.uses_of", lambda _: ())
    with pytest.raises(ConfigError, match="no layers of encoder-decoder attention"):
        run().align(SOURCES, SOURCES)
    monkeypatch.setattr("transformer_jax.evaluation.attention.uses_of", lambda _: ())
    with pytest.raises(ConfigError, match="no layers and heads of attention to show"):
        run().attention(SOURCES[0])


@pytest.mark.parametrize(
    ("config", "overrides", "words"),
    [
        (Config(model=None), None, "is not a config: give a Config or a preset"),
        (3, None, "3 is not a config"),
        (Config(train=TrainConfig(steps="many")), None, "train.steps='many' is of type str"),
        (Path("configs/nowhere.py"), None, "there is no such file"),
        ("demo", ["train.steps"], "is not a mapping of keys to values"),
        ("demo", {3: 4}, "is not a mapping of keys to values"),
        ("demo", {"model.head": 1}, "model.head"),
        ("demo", {"train.steps": "many"}, "train.steps='many' is of type str"),
        ("demo", {"--config.train.steps": 9}, "train.steps is named without dashes"),
        (Config(), {"train.decay_steps": 9}, "train.decay_steps=9 changes nothing here"),
    ],
)
def test_what_is_no_config_and_no_override_is_one_line(config, overrides, words, tmp_path):
    with refused(UserError, words):
        train(config, tmp_path / "run", overrides)
    assert not (tmp_path / "run").exists()
