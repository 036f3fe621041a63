"""What the training step asks of a GPU, read from the program that is exported for CUDA.

JAX lowers the step for a platform that this machine does not have, in a second, kernels included.
One test reads the program for a CPU in the same way.
"""

import collections
import functools
import re
from typing import Any

import jax
import pytest

from benchmarks.gpu_plan import SEARCH, traced_search
from benchmarks.gpu_roofline import OTHER, part_of
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.program import BatchShape
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

pytestmark = pytest.mark.slow("compiles programs for a GPU's kernels")

LAYERS, VOCABULARY, PADDED, D_MODEL, HEADS = 2, 1_000, 1_024, 64, 4
SHAPE = BatchShape(rows=16, src_length=64, tgt_length=48)
TENSOR = r"tensor<([\dx]*)(\w+)>"
PRODUCT = re.compile(rf"stablehlo\.dot_general.*: \({TENSOR}, {TENSOR}\) -> {TENSOR}")


@functools.cache
def lowered(dtype: str, kernel: str, platform: str, **train: Any) -> jax.stages.Lowered:
    """The step for a platform."""
    sizes = {"num_layers": LAYERS, "d_model": D_MODEL, "num_heads": HEADS, "d_ff": 96}
    config = ModelConfig(**sizes, dtype=dtype, attention_kernel=kernel)
    settings = TrainConfig(loss_block=256, **train)
    model = make_model(config, VOCABULARY)
    optimizer = make_optimizer(settings, D_MODEL)
    state = jax.eval_shape(lambda: init_state(0, model, optimizer))
    step = jax.jit(make_train_step(model, optimizer, settings))
    return step.trace(state, SHAPE.abstract()).lower(lowering_platforms=(platform,))


@functools.cache
def exported(dtype: str, kernel: str = "plain", platform: str = "cuda", **train: Any) -> list[str]:
    """The lines of the step's StableHLO for a platform."""
    return lowered(dtype, kernel, platform, **train).as_text().split("\n")


def operand_types(lines: list[str]) -> list[tuple[str, str]]:
    """The types of both operands of each matrix product."""
    found = [PRODUCT.search(line) for line in lines if "stablehlo.dot_general" in line]
    assert all(found), "a product that the pattern does not read"
    return [(match[2], match[4]) for match in found if match]


def test_no_product_of_a_bfloat16_step_has_a_float32_operand():
    """Matrix units multiply float32 several times more slowly than bfloat16."""
    narrow, wide = operand_types(exported("bfloat16")), operand_types(exported("float32"))
    assert set(narrow) == {("bf16", "bf16")}
    assert wide == [("f32", "f32")] * len(narrow), "the step in float32 has the same products"
    triton = [line for line in exported("float32") if "xla.gpu.triton" in line]
    assert not triton, "no kernel of lower precision"


def test_a_cpu_gets_bfloat16_products_with_float32_results():
    """XLA for a CPU multiplies bfloat16 as float32 where the result is bfloat16."""
    lines = exported("bfloat16", platform="cpu")
    assert len(operand_types(lines)) == len(operand_types(exported("bfloat16")))
    assert set(operand_types(lines)) == {("bf16", "bf16")}
    products = [PRODUCT.search(line) for line in lines if "stablehlo.dot_general" in line]
    assert {match[6] for match in products if match} == {"f32"}


def test_the_fused_kernels_take_the_place_of_attention_s_products_and_scores():
    """Three kernels an attention, two a residual, and one of the loss, in the loop."""
    lines = exported("bfloat16", kernel="fused")
    attentions, products = 3 * LAYERS, 2 + 2 * 2  # products of one attention, forward and backward
    assert len(operand_types(lines)) == len(operand_types(exported("bfloat16"))) - (
        attentions * products
    )
    calls = [re.search(r'name = "(\w+)"', line) for line in lines if "xla.gpu.triton" in line]
    counts = collections.Counter(call[1] for call in calls if call)
    expected = dict.fromkeys(("forward_kernel", "query_kernel", "key_kernel"), attentions)
    expected |= dict.fromkeys(("residual_kernel", "residual_gradient_kernel"), 5 * LAYERS)
    assert counts == expected | {"loss_kernel": 1}
    scores = re.compile(rf"tensor<{SHAPE.rows}x{HEADS}x(64|48)x(64|48)x")
    assert any(scores.search(line) for line in exported("bfloat16")), "the pattern finds scores"
    assert not any(scores.search(line) for line in lines)


def test_micro_batches_are_a_loop_with_one_step_in_it():
    assert operand_types(exported("bfloat16", accumulate_steps=4)) == operand_types(
        exported("bfloat16")
    )


def test_the_embedding_is_cast_once_and_not_in_the_loss_s_loop():
    lines = exported("bfloat16")
    cast = f"(tensor<{PADDED}x{D_MODEL}xf32>) -> tensor<{PADDED}x{D_MODEL}xbf16>"
    places = [n for n, line in enumerate(lines) if "stablehlo.convert" in line and cast in line]
    loops = [n for n, line in enumerate(lines) if "stablehlo.while" in line]
    assert len(places) == 1 and len(loops) == 1
    assert places[0] < loops[0]


def test_logits_in_bfloat16_are_never_there_in_float32():
    logits = re.compile(rf"tensor<(1x4x48|192)x{PADDED}xf32>")  # 4 rows of 48 are a block
    narrow = exported("bfloat16", kernel="fused", logits_dtype="bfloat16")
    assert not any(logits.search(line) for line in narrow)
    assert any(logits.search(line) for line in exported("bfloat16", kernel="fused"))


def named_products(step: jax.stages.Lowered) -> tuple[list[str], collections.Counter[str]]:
    """The names of all operations, and the number of products in each part of the model."""
    text = step.as_text(debug_info=True)
    names = dict(re.findall(r'^(#loc\d+) = loc\("([^"]*)"', text, re.M))
    products = re.findall(r"stablehlo\.dot_general.*loc\((#loc\d+)\)$", text, re.M)
    return list(names.values()), collections.Counter(part_of(names[name]) for name in products)


def test_the_step_has_the_products_of_the_equations_and_the_gpu_plan_knows_their_parts():
    """Attention has 4 projections and 2 products, a feed-forward network 2; backward twice that.

    The plan reads the names of operations, which change with the names of modules and methods.
    """
    names, products = named_products(lowered("bfloat16", "plain", "cuda"))
    attentions, networks = 3 * LAYERS, 2 * LAYERS
    assert products == {
        "projections": 3 * 4 * attentions,
        "attention": 3 * 2 * attentions,
        "feed-forward": 3 * 2 * networks,
        # Logits and both gradients of the loss: in the body of its loop, names begin anew.
        OTHER: 3,
    }
    assert {part_of(name) for name in names if name.endswith("/while")} == {"loss"}


def test_the_gpu_plan_knows_the_part_of_each_product_and_choice_of_search():
    model = make_model(ModelConfig(num_layers=LAYERS, d_model=D_MODEL, num_heads=HEADS), VOCABULARY)
    traced = traced_search(model, SEARCH._replace(rows=4, together=2))
    names, products = named_products(traced.lower(lowering_platforms=("cuda",)))
    blocks = sum(2 * n for n in (1, 2, 3, 4))  # a branch for each number of filled blocks of keys
    assert products == {
        "projections": (4 + 2) * LAYERS,
        "attention": (blocks + 2) * LAYERS,
        "feed-forward": 2 * LAYERS,
        "logits": 1,
    }
    assert "log softmax, choice of hypotheses" in {
        part_of(name) for name in names if "top_k" in name
    }
