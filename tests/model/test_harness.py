"""Properties of every model: one test for each, which runs over tests/model/configs.py.

Other files test each function of the model against slow NumPy; this file tests whole models.
Meshes are in tests/parallel, the counts of cost in tests/training/test_cost.py.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import along_a_direction
from tests.fixtures.steps import ROW_LENGTHS, ROWS, assert_steps_equal_all_at_once
from tests.fixtures.tiny import (
    SIZES,
    VOCABULARY,
    Pair,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
    with_features,
    with_sources,
)
from tests.model.configs import CONFIGS, COVERING, ONE_LAYER
from transformer_jax.config.checks import check
from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.train import TrainConfig
from transformer_jax.model import axes
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Now, SearchSizes
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.parameters import abstract_params, axis_names, narrowed
from transformer_jax.parallel.mesh import TABLE
from transformer_jax.text.batches import Batch
from transformer_jax.text.vocabulary import EOS

SRC_LENGTH, TGT_LENGTH = ROW_LENGTHS  # a window of 5 is computed in blocks of 16
PAIRS = random_pairs(3, [(9, 7), (4, 5), (2, 3), (6, 8)])
# With several sources: one of one subword, some without text.
SOURCES = {2: [(4,), (1,), (0,), (2,)], 3: [(2, 5), (0, 2), (0,), (1, 2)]}
EVERY = pytest.mark.parametrize("name", CONFIGS)
# Lines with a backward pass of their own: of a score, a normalizer, a kernel, and each output.
OWN_GRADIENTS = ("base", "sink-talking-heads", "fused", "gelu", "top-k-fix-norm", "no-feed-forward")


SETTINGS = LossSettings(0.1, VOCABULARY, "float32", 2048, 1)


@functools.cache
def model_and_params(name: str) -> tuple[EncoderDecoder, Any]:
    model = tiny_model(**CONFIGS[name])
    return model, random_params(model)


@functools.cache
def watching(name: str) -> EncoderDecoder:
    """The model, with its watched weights where it has some and its kernel gives them."""
    model, _ = model_and_params(name)
    return model.clone(watch=model.sources > 0 and model.config.attention_kernel == "plain")


@functools.cache
def compiled(name: str) -> Any:
    """(variables, source, target) -> logits, watched weights: for one shape of rows."""
    return jax.jit(functools.partial(watching(name).apply, method="logits_and_watched"))


def logits_of(name: str, batch: Batch, params: Any = None) -> np.ndarray:
    variables = {"params": model_and_params(name)[1] if params is None else params}
    return np.asarray(compiled(name)(variables, *model_inputs(batch))[0])


def pairs_of(name: str) -> list[Pair]:
    """The pairs, in which the model's source has as many sentences as it reads."""
    sources = CONFIGS[name].get("sources", 1)
    return PAIRS if sources == 1 else with_sources(PAIRS, SOURCES[sources])


def in_rows(name: str, rows: list[list[int]]) -> Batch:
    """The pairs in these rows, then empty ones."""
    rows = [*rows, *[[]] * (ROWS - len(rows))]
    batch = lay_out(pairs_of(name), rows, SRC_LENGTH, TGT_LENGTH)
    return with_features(batch, CONFIGS[name].get("features", 0))


def packed_pairs(name: str) -> Batch:
    return in_rows(name, [[0, 2], [1, 3]])


def nats_of(model: EncoderDecoder, batch: Batch) -> Callable[[Any], Any]:
    """The smoothed loss as a function of the parameters."""
    settings = SETTINGS._replace(dtype=model.config.dtype)

    def nats(params: Any) -> Any:
        sums, _ = model.apply({"params": params}, batch, None, settings, method="loss")
        return sums.smoothed_nats

    return nats


@EVERY
def test_a_packed_row_gives_what_its_sentences_give_alone(name):
    """What is written at places of padding changes nothing, bit for bit."""
    rows = [[0], [1], [2], [3]], [[3, 1, 0], [], [2], []]
    batches = [in_rows(name, own) for own in rows]
    alone, packed = (
        of_each_pair(logits_of(name, batch)[..., :VOCABULARY], batch, own)
        for batch, own in zip(batches, rows, strict=True)
    )
    for number in alone:
        assert relative_error(packed[number], alone[number]) < 1e-5
    for side in batches[0][:2]:
        side.ids[side.segments == 0] = 7
        if side.features is not None:
            side.features[side.segments == 0] = 7
    filled = of_each_pair(logits_of(name, batches[0])[..., :VOCABULARY], batches[0], rows[0])
    for number in alone:
        np.testing.assert_array_equal(filled[number], alone[number])


@EVERY
def test_a_position_depends_on_no_later_target_input(name):
    """Another subword at position n changes no logit before n, bit for bit, and those at n."""
    rows = [[0]] * ROWS
    want = logits_of(name, in_rows(name, rows))
    length = len(PAIRS[0][1])
    reaches = np.zeros((length, length), bool)  # [input, output]
    for first in range(1, length, len(rows)):  # the input at 0 is BOS
        inputs = range(first, min(first + len(rows), length))
        changed = in_rows(name, rows)
        for row, n in enumerate(inputs):  # each input is the target's subword before it
            changed.tgt.ids[row, n - 1] = VOCABULARY - 1
        got = logits_of(name, changed)
        for row, n in enumerate(inputs):
            reaches[n] = (got[row] != want[row])[:length, :VOCABULARY].any(-1)
    assert not np.tril(reaches, -1).any()
    assert np.diagonal(reaches)[1:].all()
    assert reaches[5, 6], "the position before matters"


@EVERY
def test_every_parameter_changes_the_logits(name):
    """But for a softmax's bias of keys: it takes out what all scores of a query have in common."""
    _, params = model_and_params(name)
    batch = packed_pairs(name)
    real = batch.tgt.segments != 0
    want = logits_of(name, batch)[real][:, :VOCABULARY]
    leaves, tree = jax.tree.flatten(params)
    draw = np.random.default_rng(5)
    for n, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
        noise = draw.normal(size=leaf.shape).astype(np.float32)
        other = jax.tree.unflatten(tree, [*leaves[:n], leaf + noise, *leaves[n + 1 :]])
        error = relative_error(logits_of(name, batch, other)[real][:, :VOCABULARY], want)
        where = jax.tree_util.keystr(path, simple=True, separator=".")
        if where.endswith(
            (
                ".self_attention.key_bias",
                ".cross_attention.key_bias",
                ".over_sentences.key_bias",
                "decoder_key.bias",
            )
        ):
            assert error < 1e-5, where
        else:
            assert error > 5e-5, f"{where} is of no use"


@EVERY
def test_search_s_steps_give_what_all_positions_at_once_give(name):
    """The watched weights too, while hypotheses change beam slots at every step."""
    _, params = model_and_params(name)
    variables = {"params": params}
    assert_steps_equal_all_at_once(
        watching(name), params, lambda batch: compiled(name)(variables, *model_inputs(batch))
    )


@pytest.mark.slow("compiles models in another type")
@pytest.mark.parametrize("name", [*COVERING, "base", "convolutional"])
def test_narrow_weights_change_the_logits_as_little_as_their_rounding(name):
    """Matrices that bfloat16 holds exactly: only the products' other factor is rounded."""
    model, params = model_and_params(name)
    narrow = narrowed(model, params, "bfloat16")
    exact = jax.tree.map(lambda x: x.astype("float32"), narrow)
    batch = packed_pairs(name)
    apply = jax.jit(model.apply)
    got, want = (
        np.asarray(apply({"params": p}, *model_inputs(batch)))[..., :VOCABULARY]
        for p in (narrow, exact)
    )
    assert got.dtype == np.float32
    assert 1e-5 < relative_error(got, want) < 0.03


# Parameters with several axes: of some only products are made, others are looked up or added.
MULTIPLIED = set(
    "query key value out inner outer linear gate gates input forget update reset candidate start "
    "context readout direction history_query marginal_context kernel".split()
)
OTHER = set(
    "table bias key_bias query_bias value_bias gain buckets fertility vector matrix relative_keys "
    "relative_values contextual_keys mix_scores mix_weights markov coverage from_source from_query "
    "from_weight from_state gate_bias stop_key from_source_word from_word table_bias "
    "sources".split()
)


def test_only_what_products_alone_read_is_narrowed():
    narrow, wide = set(), set()
    for changes in CONFIGS.values():
        model = tiny_model(**changes)
        shapes = abstract_params(model)
        found = jax.eval_shape(
            lambda params, model=model: narrowed(model, params, "bfloat16"), shapes
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(found):
            (narrow if leaf.dtype == jnp.bfloat16 else wide).add((path[-1].key, leaf.ndim > 1))
    assert {(name, True) for name in MULTIPLIED} <= narrow
    assert {(name, True) for name in OTHER} <= wide
    assert all(has_axes for _, has_axes in narrow)


@pytest.mark.slow("compiles every model in another type")
@EVERY
def test_training_and_search_in_bfloat16_keep_their_types(name):
    """Traced, not run: the loss is float32, and a step returns the cache's types.

    JAX does not check what a custom backward pass returns, so lines that have one are
    differentiated: gradients are float32.
    """
    model = tiny_model(**{**CONFIGS[name], **ONE_LAYER, "dtype": "bfloat16"})
    batch = packed_pairs(name)
    sizes = SearchSizes(2, 3, 20, 9)
    now = Now(*(jnp.zeros(shape, jnp.int32) for shape in ((2,), (2, 3), (2, 3, 20))))

    def step(model: EncoderDecoder) -> Any:
        cache = axes.unboxed(model.boxed_cache(sizes))
        memory = axes.unboxed(model.boxed_memory(sizes))
        stepped = model.decode_step(now, memory, cache, model.prepare_output())
        return cache, stepped.cache, stepped.logits_BKV

    params = abstract_params(model)
    loss = nats_of(model, batch)
    traced = jax.value_and_grad(loss) if name in OWN_GRADIENTS else loss
    result = jax.eval_shape(traced, params)
    assert {x.dtype.name for x in jax.tree.leaves(result)} == {"float32"}
    before, after, logits = jax.eval_shape(
        functools.partial(model.apply, method=step), {"params": params}
    )
    assert before == after and logits.dtype == jnp.float32


@pytest.mark.slow("compiles large models twice")
@pytest.mark.parametrize("name", ["together", "ssru", "recurrent", "convolutional"])
def test_rematerialization_changes_no_gradient(name):
    model, params = model_and_params(name)
    batch = packed_pairs(name)
    kept, again = (
        jax.jit(jax.grad(nats_of(m, batch)))(params) for m in (model, model.clone(remat=True))
    )
    paths = jax.tree_util.tree_leaves_with_path(kept)
    for (path, one), other in zip(paths, jax.tree.leaves(again), strict=True):
        assert relative_error(other, one) < 1e-5, path
        assert np.abs(one).max() > 0, f"{path} is of no use"


@pytest.mark.slow("compiles in double precision")
@pytest.mark.parametrize(
    "name", ["base", "rotary", "contextual", "marian", "additive", "differential", *COVERING]
)
def test_gradients_equal_finite_differences_in_double_precision(name):
    with jax.enable_x64(True):
        model = tiny_model(**{**CONFIGS[name], **ONE_LAYER, "dtype": "float64"})
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), random_params(model))
        value_and_gradient = jax.jit(jax.value_and_grad(nats_of(model, packed_pairs(name))))
        _, gradient = value_and_gradient(params)
        slope, want = along_a_direction(lambda x: value_and_gradient(x)[0], gradient, params)
        assert slope == pytest.approx(want, rel=1e-5)


@EVERY
def test_every_parameter_names_its_axes(name):
    """What is repeated on every device is a vector."""
    model = tiny_model(**CONFIGS[name])
    leaves = jax.tree.leaves(abstract_params(model)), jax.tree.leaves(axis_names(model))
    for x, own in zip(*leaves, strict=True):
        assert len(own) == x.ndim and {*own} <= {*TABLE, axes.DISTANCES, None}, own
        assert any(own) or x.ndim < 2, "no axis of a matrix has a name"
        assert len({*own} - {None}) == len(own) - own.count(None), "an axis is named twice"


@EVERY
def test_the_config_passes_the_checks(name):
    model = ModelConfig(**{**SIZES, **CONFIGS[name]})
    languages = ",".join(["de", "fr", "it"][: model_and_params(name)[0].sources])
    kind = "pictures" if model.features else "text"
    data = DataConfig(path=".", src=languages, tgt="en", max_length=16, src_kind=kind)
    if model.features:
        data = dataclasses.replace(data, patch_height=model.features, patch_width=1)
    train, decode = TrainConfig(row_length=16), DecodeConfig(max_length=16)
    config = Config(model=model, data=data, train=train, decode=decode)
    check(config)


def test_source_sentences_are_encoded_apart_and_told_apart_by_their_number():
    """Beside another sentence each is what it is alone, but for the vector of its number."""
    model, params = model_and_params("two-sources")
    pairs = pairs_of("two-sources")
    encode = jax.jit(functools.partial(model.apply, method="encode"))

    def encoded(params: Any, sources: list[Any], number: int) -> Any:
        batch = lay_out([(src, [EOS]) for src in sources], [[number]], SRC_LENGTH, TGT_LENGTH)
        return np.asarray(encode({"params": params}, batch.src))[0]

    src = pairs[0][0]
    parts = src[:5], src[5:]
    both = encoded(params, [src], 0)[: len(src)]
    first, second = (encoded(params, parts, n)[: len(parts[n])] for n in (0, 1))
    assert relative_error(both[:5], first) < 1e-5
    assert relative_error(both[5:], second) > 1e-2
    of_second = params["sources"].at[0].set(params["sources"][1])
    second = encoded({**params, "sources": of_second}, parts, 1)[: len(parts[1])]
    assert relative_error(both[5:], second) < 1e-5


def test_a_second_source_without_text_changes_nothing_where_eos_is_hidden():
    """Then the model with two sources is that with one."""
    two, one = (tiny_model(**ONE_LAYER, sources=n, source_eos=False) for n in (2, 1))
    params = random_params(two)
    longer = [([*src, EOS], tgt) for src, tgt in PAIRS]
    both, batch = (
        lay_out(pairs, [[0, 2], [1, 3]], SRC_LENGTH, TGT_LENGTH) for pairs in (longer, PAIRS)
    )
    first = {**params, "sources": params["sources"].at[0].set(0.0)}
    alone = {name: own for name, own in params.items() if name != "sources"}
    got = jax.jit(two.apply)({"params": first}, *model_inputs(both))
    want = jax.jit(one.apply)({"params": alone}, *model_inputs(batch))
    real = batch.tgt.segments != 0
    assert relative_error(got[real][:, :VOCABULARY], want[real][:, :VOCABULARY]) < 1e-6
