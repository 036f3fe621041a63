"""From a config to what training reads."""

import itertools
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import other_value
from tests.fixtures.encoded import in_memory, pairs_in, pairs_of
from tests.fixtures.tiny import tiny_model
from transformer_jax.config.changes import of_other_direction
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import KEYS
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.model.parameters import abstract_params
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.vocabulary import EOS, load_vocabulary
from transformer_jax.text.vocabulary_training import train_vocabulary
from transformer_jax.training import data, text_checks
from transformer_jax.training import vocabulary as vocabulary_module
from transformer_jax.training.data import TrainingData, load_data, nominal_shape
from transformer_jax.training.program import BatchShape


def load(folder: Path, **changes) -> TrainingData:
    return load_data(runs.tiny_config(**changes), RunFolder(folder))


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A copy of the tiny corpus to change."""
    return Path(shutil.copytree(runs.tiny_corpus(), tmp_path / "corpus"))


def test_loading_writes_nothing_into_the_run_s_folder(tmp_path):
    load(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_other_direction_has_the_same_pairs_with_their_sides_exchanged(tmp_path):
    lengths = {"train__row_length": 72, "data__max_length": 40}
    config = runs.tiny_config(train__agreement_weight=0.0, **lengths)
    one = load_data(config, RunFolder(tmp_path))
    other = one.of_other_direction(of_other_direction(config))
    for split in ("train", "valid"):
        pairs, swapped = (found.corpus.split(split) for found in (one, other))
        assert [(pair.tgt, pair.src) for pair in pairs] == [tuple(pair) for pair in swapped]
    assert {(src, tgt) for tgt, src in pairs_of(other.valid)} == {*pairs_of(one.valid)}
    assert other.shape.lengths == one.shape.lengths[::-1]
    assert other.valid_shape.lengths == one.valid_shape.lengths[::-1]
    for plan, swapped in ((one.plan, other.plan), (one.valid_plan, other.valid_plan)):
        assert plan.src_row_length != plan.tgt_row_length
        assert swapped.src_row_length == plan.tgt_row_length
        assert swapped.tgt_row_length == plan.src_row_length
        assert (swapped.src_fill, swapped.tgt_fill) == (plan.tgt_fill, plan.src_fill)
    assert set(other.fingerprints).isdisjoint(one.fingerprints)


def test_the_rows_of_a_batch_follow_from_the_target_s_fill():
    """Sources of one subword leave their rows nearly empty."""
    pairs = in_memory([[7, EOS]] * 64, [[7] * 16 + [EOS]] * 64)
    train = TrainConfig(row_length=17, tokens_per_batch=17 * 16, rows_multiple=1)
    plan, shape = data._plan_training(pairs, train, 17, seed=0)
    assert plan.tgt_fill == 1.0 and plan.src_fill < 0.5
    assert shape.rows == 16


def test_the_rows_of_a_batch_are_a_multiple_of_train_rows_multiple(tmp_path):
    assert load(tmp_path, train__rows_multiple=5).shape.rows == 10
    assert load(tmp_path).shape.rows == 8
    assert nominal_shape(runs.tiny_config(train__rows_multiple=5)).rows == 10


@pytest.fixture
def trained(tmp_path, monkeypatch) -> list[int]:
    """The number of lines of each vocabulary that is trained; the cache is empty."""
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    counts = []

    def spy(lines, config, seed, codes):
        counts.append(len(known := [*lines]))
        return train_vocabulary(known, config, seed)

    monkeypatch.setattr(vocabulary_module, "train_vocabulary", spy)
    return counts


def test_a_second_run_finds_the_vocabulary_made(tmp_path, trained):
    first, second = (load(tmp_path / name).vocabulary for name in "ab")
    assert first.digest == second.digest and len(trained) == 1
    load(tmp_path / "c", data__train=("train", "valid"))  # other text
    load(tmp_path / "d", vocabulary__size=410)
    load(tmp_path / "e", data__seed=1)  # perhaps another sample of the lines
    assert len(trained) == 4


@pytest.mark.parametrize("weight", ["0.001", "0.5", "1000"])
def test_a_vocabulary_sees_a_text_once_whatever_its_weight(tmp_path, trained, weight):
    load(tmp_path, data__train=(f"train*{weight}",))
    assert trained == [2 * runs.SIZES["train"]]


def test_validation_is_every_pair_once_in_batches_of_one_shape(tmp_path):
    data = load(tmp_path)
    batches = list(data.valid_batches(np.arange(data.valid_shape.rows)))
    assert len(batches) > 1
    for batch in batches:
        for side, length in zip(batch[:2], data.valid_shape.lengths, strict=True):
            shapes = [part.shape for part in jax.tree.leaves(side)]
            assert shapes == [(data.valid_shape.rows, length)] * 3
    assert pairs_in(batches) == pairs_of(data.valid)


def test_what_is_cut_off_for_validation_is_not_trained_on(corpus, tmp_path, caplog):
    for suffix in ("en", "de"):
        (corpus / f"valid.{suffix}").unlink()
    with caplog.at_level("INFO"):
        found = load(tmp_path / "run", data__path=str(corpus), data__valid=(), seed=5)
    assert "285 training and 15 validation pairs" in caplog.text and "cut off" in caplog.text
    whole = pairs_of(found.train) + pairs_of(found.valid)
    pairs = [(p.src, p.tgt) for name in ("train", "valid") for p in found.corpus.split(name)]
    lines = [runs.read_lines(corpus / f"train.{suffix}") for suffix in ("en", "de")]
    assert sorted(pairs) == sorted(zip(*lines, strict=True)) and whole.total() == 300


def test_long_validation_pairs_lengthen_the_rows_and_none_is_left_out(corpus, tmp_path):
    for path in corpus.glob("valid.*"):
        lines = runs.read_lines(path)
        runs.write_lines(path, [*lines[:3], " ".join(lines[:6])])
    data = load(tmp_path / "run", data__path=str(corpus))
    longest = int(max(data.valid.src_lengths().max(), data.valid.tgt_lengths().max()))
    assert longest > max(data.shape.src_length, data.shape.tgt_length)
    assert data.valid_shape.rows == data.shape.rows
    assert longest <= max(data.valid_shape.lengths) < longest + 8
    assert pairs_in(data.valid_batches(np.arange(data.valid_shape.rows))) == pairs_of(data.valid)


def test_a_validation_pair_exactly_at_the_length_limit_is_kept(corpus, tmp_path, caplog):
    first = load(tmp_path / "first")
    limit = data.VALID_STRETCH * max(first.shape.src_length, first.shape.tgt_length)
    words = sorted(set(" ".join(runs.read_lines(runs.tiny_corpus() / "train.en")).split()))
    word = next(word for word in words if len(first.vocabulary.encode(f"{word} {word}")) == 2)
    lengths = [(limit, 5), (5, limit), (limit, limit), (limit + 1, 5), (5, limit + 1)]
    for side, language in enumerate(("en", "de")):  # EOS is the last subword of each
        lines = [" ".join([word] * (pair[side] - 1)) for pair in lengths]
        runs.write_lines(corpus / f"valid.{language}", lines)
    with caplog.at_level(logging.WARNING):
        found = load(tmp_path / "run", data__path=str(corpus))
    assert found.valid_shape[:3] == (found.shape.rows, limit, limit)
    batches = found.valid_batches(np.arange(found.valid_shape.rows))
    kept = [(len(src), len(tgt)) for src, tgt in pairs_in(batches).elements()]
    assert sorted(kept) == sorted(lengths[:3])
    assert f"leaves out 2 pairs with more than {limit} subwords" in caplog.text


def test_the_log_says_how_full_each_side_s_rows_are(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        found = load(tmp_path)
    plan, train = found.plan, found.train
    both = zip((train.src_lengths(), train.tgt_lengths()), found.shape.lengths, strict=True)
    src, tgt = (
        f"{100 * lengths[plan.pair_order].sum() / (len(plan) * row_length):.1f}"
        for lengths, row_length in both
    )
    assert src != tgt
    assert f"source ({src} % real) and 48 target positions ({tgt} % real" in caplog.text


def test_training_skips_what_is_too_long_and_says_how_much(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        data = load(tmp_path, data__max_length=30)
    lengths = np.maximum(data.train.src_lengths(), data.train.tgt_lengths())
    too_long = int((lengths > 30).sum())
    assert 0 < too_long < len(data.train)
    assert len(data.plan.pair_order) == len(data.train) - too_long
    share = 100 * too_long / len(data.train)
    assert (
        f"skips {share:.1f} % of the pairs: {too_long} with more than 30 source or 30 target"
        in caplog.text
    )
    assert "data.max_length; of targets train.row_length too" in caplog.text
    assert not [r for r in caplog.records if "valid" in r.getMessage()]
    assert "smallest batch" not in caplog.text


def test_a_batch_that_is_larger_than_asked_for_is_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load(tmp_path, train__tokens_per_batch=10)
    assert "train.tokens_per_batch=10 is less than the smallest batch: " in caplog.text
    assert "more than once" not in caplog.text
    load(tmp_path, train__tokens_per_batch=100_000)
    assert "updates see pairs more than once; see train.tokens_per_batch" in caplog.text


def test_a_pair_that_fits_both_limits_is_trained_on(tmp_path):
    """Also where shorter rows of the source would have less padding."""
    found = load(tmp_path, data__max_length=40, train__row_length=80)
    src, tgt = found.train.src_lengths(), found.train.tgt_lengths()
    fits = (src <= 40) & (tgt <= 40)
    assert len(found.plan.pair_order) == fits.sum() < len(src)


def test_validation_text_that_training_shows_is_told(caplog, monkeypatch):
    monkeypatch.setattr(text_checks, "CHUNK_PAIRS", 3)
    vocabulary = SimpleNamespace(sizes=(9, 9), codes={">>bt<<": 8})
    train = in_memory([[8, i % 7, 1] for i in range(20)], [[1]] * 20)
    half = in_memory([[3, 1], [7, 1]], [[1], [1]])
    swapped = in_memory([[1]], [[3, 1]])
    text_checks.warn_of_known_pairs(train, half, vocabulary, "validation")
    assert "1 of 2 validation pairs are training pairs too" in caplog.text
    caplog.clear()
    text_checks.warn_of_known_pairs(train, swapped, vocabulary, "validation")
    assert not caplog.records


def test_test_text_inside_the_training_text_is_told(corpus, tmp_path, caplog):
    for side in ("en", "de"):
        test, train = (corpus / f"{split}.{side}" for split in ("test", "train"))
        train.write_text(train.read_text() + test.read_text())
    load(tmp_path, data__path=str(corpus), data__test=("test",))
    count = runs.SIZES["test"]
    assert f"{count} of {count} test pairs are training pairs too, so scores" in caplog.text
    caplog.clear()
    load(tmp_path, data__path=str(runs.tiny_corpus()), data__test=("test",))
    assert "training pairs too" not in caplog.text


def test_recordings_and_pictures_that_training_shows_are_told(caplog):
    def pairs(values: list[float], targets: list[int]) -> EncodedPairs:
        """Pairs of three positions of two features and a target of one subword."""
        offsets = np.arange(len(values) + 1)
        features = np.repeat(np.array(values, np.float32), 6).reshape(-1, 2)
        features[2::3] = 0.0
        return EncodedPairs(features, 3 * offsets, np.array(targets, np.uint16), offsets)

    vocabulary = SimpleNamespace(codes={}, sizes=(9, 9))
    train = pairs([0.1, 0.2, 0.3], [4, 5, 6])
    text_checks.warn_of_known_pairs(train, pairs([0.2, 0.9], [6, 5]), vocabulary, "validation")
    assert not caplog.records
    text_checks.warn_of_known_pairs(train, pairs([0.2, 0.9], [5, 5]), vocabulary, "validation")
    assert "1 of 2 validation pairs are training pairs too" in caplog.text


def test_the_same_files_are_pairs_or_the_texts_of_a_language_model(corpus, tmp_path, monkeypatch):
    """Each has its own encoded text in the cache."""
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    for split, languages in itertools.product(("train", "valid"), ("en", "de")):
        (corpus / f"{split}_{languages}.txt").symlink_to(corpus / f"{split}.{languages}")
    alone = {"data__src": "", "data__tgt": "txt", "model__encoder": "none"}
    alone |= {f"data__{x}": (f"{x}_en", f"{x}_de") for x in ("train", "valid")}
    for _ in range(2):
        pairs = load(tmp_path / "pairs", data__path=str(corpus))
        texts = load(tmp_path / "texts", data__path=str(corpus), **alone)
        assert len(texts.train) == 2 * len(pairs.train) == 600


def test_ctc_needs_targets_that_fit_into_the_states_of_their_sources(caplog):
    ids = np.zeros(30, np.uint16)
    some, none = (
        EncodedPairs(ids, np.array([0, 2, 4, 6]), ids, np.cumsum([0, *lengths]))
        for lengths in ([4, 6, 7], [7, 7, 7])
    )
    text_checks.check_lengths(some, some, "ctc")
    assert (
        "1 training targets (33.3 %) cannot be written by model.parallel=ctc: it has 3 places"
        in caplog.text
    )
    for kind, splits in (("training", (none, some)), ("validation", (some, none))):
        with pytest.raises(DataError, match=f"No {kind} target .*ctc can write: it has 3 places"):
            text_checks.check_lengths(*splits, "ctc")


def test_mask_predict_counts_lengths_from_the_source_s(caplog):
    src, tgt = np.cumsum([0, 130, 130, 73, 73]), np.cumsum([0, 2, 1, 201, 200])
    pairs = EncodedPairs(np.zeros(406, np.uint16), src, np.zeros(404, np.uint16), tgt)
    text_checks.check_lengths(pairs, pairs, "mask_predict")
    assert (
        "2 validation targets (50.0 %) cannot be written by model.parallel=mask_predict"
        in caplog.text
    )


def test_references_that_cannot_be_written_are_counted(caplog):
    vocabulary = load_vocabulary(RunFolder(runs.trained_run()).vocabulary_file)
    pairs = [Pair("a", "10 m")] * 196 + [Pair("a", "10² m")] * 2
    text_checks.warn_of_lost_characters(pairs, vocabulary)
    assert "2 of 198 validation references have characters" in caplog.text
    caplog.clear()
    text_checks.warn_of_lost_characters(pairs * 2 + [Pair("a", "the  dog")] * 5, vocabulary)
    text_checks.warn_of_lost_characters([*pairs[:-1], *pairs[:9]], vocabulary)
    assert not caplog.records[1:]


def test_the_batch_holds_about_the_tokens_that_are_asked_for(tmp_path):
    data = load(tmp_path, train__tokens_per_batch=1200)
    tokens = data.shape.rows * data.shape.tgt_length * data.plan.tgt_fill
    assert data.shape.rows % 8 == 0
    assert abs(tokens - 1200) <= 4 * data.shape.tgt_length
    nominal = nominal_shape(runs.tiny_config(train__tokens_per_batch=1200))
    assert nominal == BatchShape(24, 48, 48), "25.8 rows at 97 %, rounded down to a multiple of 8"
    assert nominal_shape(runs.tiny_config(data__alignments=True)).has_links
    for several in ({"model__sources": 2}, {"data__context": 1}):
        assert nominal_shape(runs.tiny_config(**several)).src_length == 2 * 48


@pytest.mark.parametrize("shape", [(8, 48, 40), (8, 40, 48)])
def test_rows_may_be_exactly_as_long_as_the_learned_positions(shape):
    shapes = BatchShape(8, 16, 16), BatchShape(*shape)
    check_positions = data._check_positions
    check_positions(ModelConfig(positions="learned", max_positions=48), *shapes)
    with pytest.raises(ConfigError, match="max_positions=47 is too small .* Raise it to 48"):
        check_positions(ModelConfig(positions="learned", max_positions=47), *shapes)


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("test", ""),
        ("train[:5]", "data.train='train[3:]' and the test text 'train[:5]' share pairs"),
        ("train", "data.train='train[3:]' and the test text 'train' share pairs"),
        ("copied", "data.test=('copied',) has files of the training text"),
        ("valid", "data.test=('valid',) is the validation text"),
        ("absent", "there is no test split for a later `evaluate`: "),
        ("", ""),
    ],
)
def test_a_text_that_is_no_test_text_is_a_warning_unless_none_is_asked_for(
    test, told, corpus, caplog
):
    shutil.copy(corpus / "train.de", corpus / "copied.de")
    runs.write_lines(corpus / "copied.en", ["a"] * 300)
    asked = {"data__train": ("train[3:]",), "data__test": (test,) if test else ()}
    config = runs.tiny_config(data__path=str(corpus), **asked).data
    opened = open_corpus(config)
    text_checks.warn_of_splits(opened, config, opened.fingerprint("valid"))
    assert [message[: len(told)] for message in caplog.messages] == [told] * bool(told)


@pytest.mark.parametrize(
    ("train", "directions", "told"),
    [
        (("train", "train*3"), (), "data.train has pairs twice, in 'train' and 'train'"),
        (("train[:9]", "train[8:]"), (), "pairs twice, in 'train[:9]' and 'train[8:]'"),
        (("train[:8]", "train[8:]", "train@a"), (), ""),
        (("train:en-de", "train"), ("en-de", "de-en"), "in 'train:en-de' and 'train:en-de'"),
        (("train:en-de", "train:de-en"), ("en-de", "de-en"), ""),
        (("train", "copied"), (), "pairs twice, in 'train' and 'copied'"),
        (("train[:9]", "copied[8:]@a"), (), ""),
        (("train[:9]@a", "copied[8:]@a"), (), "pairs twice"),
        (("train:en-de", "copied:en-de"), ("en-de", "de-en"), "'copied:en-de'"),
        (("train", "./train"), (), "pairs twice"),
    ],
)
def test_pairs_that_training_has_twice_are_told(train, directions, told, corpus, caplog):
    shutil.copy(corpus / "train.en", corpus / "copied.en")
    (corpus / "copied.de").symlink_to(corpus / "train.de")
    asked = {"data__train": train, "data__directions": directions, "data__test": ()}
    config = runs.tiny_config(data__path=str(corpus), **asked).data
    text_checks.warn_of_splits(open_corpus(config), config, "")
    assert told in caplog.text and len(caplog.records) == bool(told)


def test_a_vocabulary_that_is_not_there_is_told(tmp_path, caplog):
    folder = runs.copy_of_run(tmp_path / "run")
    load(folder, vocabulary__path="/none.model")
    assert "vocabulary.path=/none.model is not there: the run's own" in caplog.text


def test_links_are_kept_for_as_many_pairs_as_the_config_says(corpus, tmp_path):
    runs.write_lines(corpus / "train.align", ["0-0"] * 300)
    changes = {"data__alignments": True, "data__aligned_pairs": 5}
    links = load(tmp_path / "run", data__path=str(corpus), **changes).train.links
    assert [n > 0 for n in np.diff(links.offsets)] == [True] * 5 + [False] * 295


# Which vocabulary ------------------------------------------------------------------------------


def test_a_run_keeps_its_vocabulary_whatever_the_config_says(tmp_path):
    own = load_vocabulary(runs.trained_run() / "vocabulary.model")
    run = runs.copy_of_run(tmp_path / "run")
    assert load(run, vocabulary__size=350).vocabulary.digest == own.digest
    moved = {"vocabulary__path": str(tmp_path / "on" / "the" / "first" / "machine.model")}
    assert load(run, **moved).vocabulary.digest == own.digest
    assert load(tmp_path / "new").vocabulary.digest == own.digest, "trained anew, the same"
    assert load(tmp_path / "new", vocabulary__size=350).vocabulary.size == 350


def test_a_given_vocabulary_is_taken_and_that_of_the_origin_first(tmp_path):
    smaller = load(tmp_path, vocabulary__size=350).vocabulary
    smaller.save(tmp_path / "smaller.model")
    given = {"vocabulary__path": str(tmp_path / "smaller.model")}
    assert load(tmp_path / "new", **given).vocabulary.digest == smaller.digest
    origin = {"train__init_from": str(runs.trained_run())}
    assert load(tmp_path / "new", **given, **origin).vocabulary.size == 400


def test_a_run_refuses_another_vocabulary_than_its_own(tmp_path):
    run = runs.copy_of_run(tmp_path / "run")
    (tmp_path / "same.model").write_bytes((run / "vocabulary.model").read_bytes())
    load(run, vocabulary__path=str(tmp_path / "same.model"))
    load(tmp_path, vocabulary__size=350).vocabulary.save(tmp_path / "smaller.model")
    with pytest.raises(RunError, match="with another vocabulary than vocabulary.path=.*smaller"):
        load(run, vocabulary__path=str(tmp_path / "smaller.model"))


def test_two_directions_need_one_vocabulary_for_both_sides():
    """Two of the same size would be trained without an error, each on the other's ids."""
    found = TrainingData(SimpleNamespace(is_shared=False), *[None] * 9)
    with pytest.raises(ConfigError, match="train.agreement_weight=0.5 needs one vocabulary for"):
        found.of_other_direction(runs.tiny_config(train__agreement_weight=0.5))


def test_the_origin_may_differ_in_what_needs_no_other_weights(tmp_path):
    changes = {"model__dropout": 0.4, "model__dtype": "bfloat16", "model__window": 5}
    changes |= {"model__pattern": "strided", "model__stride": 2, "model__wait_k": 3}
    data = load(tmp_path, train__init_from=str(runs.trained_run()), **changes)
    assert data.vocabulary.size == 400


def test_only_keys_without_other_weights_may_differ():
    free = [name for name, key in KEYS.items() if not key.in_weights]
    assert len(free) == 18
    base = {"num_layers": 3, "window": 9, "pattern": "strided", "wait_k": 2, "normalizer": "top_k"}
    base |= {"cross_normalizer": "chunkwise", "output": "marginal"}
    other = dict(base)
    for name in free:
        key = name.removeprefix("model.")
        other[key] = other_value(name, base.get(key, KEYS[name].default))
    assert abstract_params(tiny_model(**other)) == abstract_params(tiny_model(**base))


def test_training_sees_several_segmentations_and_validation_the_usual_one(tmp_path):
    usual = load(tmp_path)
    changes = {"vocabulary__dropout": 0.1, "vocabulary__segmentations": 3}
    drawn, again = (load(tmp_path, **changes) for _ in range(2))
    assert len(drawn.train) == 3 * len(usual.train)
    assert len(drawn.plan.pair_order) > 2.8 * len(usual.plan.pair_order)
    assert 0.9 < drawn.steps_per_epoch / usual.steps_per_epoch < 1.5  # of one reading of the text
    assert drawn.train.src_offsets[-1] > 3.1 * usual.train.src_offsets[-1]
    assert pairs_of(drawn.valid) == pairs_of(usual.valid)
    assert pairs_of(again.train) == pairs_of(drawn.train)
    assert pairs_of(load(tmp_path, **changes, seed=1).train) != pairs_of(drawn.train)


def test_a_given_vocabulary_is_one_or_two_as_the_config_says(tmp_path):
    apart = {"model__tie_embeddings": False, "vocabulary__separate": True}
    for name, changes in (("one", {}), ("two", apart)):
        load(tmp_path, **changes).vocabulary.save(tmp_path / f"{name}.model")
    one, two = (str(tmp_path / f"{name}.model") for name in ("one", "two"))
    with pytest.raises(ConfigError, match="separate=True: vocabulary.path=.* has one for both"):
        load(tmp_path, vocabulary__path=one, **apart)
    load(tmp_path, vocabulary__path=two, model__tie_embeddings=False)
    changed = {"model__tie_embeddings": False, "train__objective": "back_translation"}
    with pytest.raises(ConfigError, match="for each side; back_translation needs one"):
        load(tmp_path, vocabulary__path=two, **changed)


def test_a_unigram_vocabulary_has_no_merges_to_skip(tmp_path):
    load(tmp_path, vocabulary__kind="unigram").vocabulary.save(tmp_path / "unigram.model")
    changes = {"vocabulary__path": str(tmp_path / "unigram.model"), "vocabulary__dropout": 0.1}
    with pytest.raises(ConfigError, match="vocabulary.dropout=0.1 skips merges, and this run's"):
        load(tmp_path, **changes)


def test_validation_on_the_training_text_is_refused(corpus, tmp_path):
    for side in ("en", "de"):
        shutil.copy(corpus / f"train.{side}", corpus / f"valid.{side}")
    with pytest.raises(DataError, match=r"data.valid=\(\) is the training text"):
        load(tmp_path / "run", data__path=str(corpus))


def test_runs_with_other_seeds_share_split_and_vocabulary(corpus, tmp_path):
    for side in ("en", "de"):
        (corpus / f"valid.{side}").unlink()
    one, other, third = (
        load(tmp_path / "run", data__path=str(corpus), **seeds)
        for seeds in ({"seed": 0}, {"seed": 1}, {"seed": 0, "data__seed": 1})
    )
    assert one.fingerprints == other.fingerprints != third.fingerprints
    assert one.vocabulary.digest == other.vocabulary.digest
    assert pairs_of(one.valid) == pairs_of(other.valid) != pairs_of(third.valid)
    assert (one.plan.pair_order != other.plan.pair_order).any()
