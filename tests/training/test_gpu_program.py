"""What the training step asks of a GPU, read from the program that is exported for CUDA.

`jax.export` lowers the step for a platform that this machine does not have, in a second.
"""

import functools
import re

import jax
import pytest

from transformer_jax.config.schema import ModelConfig, TrainConfig
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.program import BatchShape
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

LAYERS, VOCABULARY, PADDED, D_MODEL = 2, 1_000, 1_024, 64
SHAPE = BatchShape(rows=16, src_length=64, tgt_length=48)
TENSOR = r"tensor<([\dx]*)(\w+)>"
PRODUCT = re.compile(rf"stablehlo\.dot_general.*: \({TENSOR}, {TENSOR}\) -> {TENSOR}")


@functools.cache
def exported(dtype: str, **train: int) -> list[str]:
    """The lines of the step's StableHLO for CUDA."""
    config = ModelConfig(num_layers=LAYERS, d_model=D_MODEL, num_heads=4, d_ff=96, dtype=dtype)
    settings = TrainConfig(loss_block=256, **train)
    model, optimizer = make_model(config, VOCABULARY), make_optimizer(settings, D_MODEL)
    state = jax.eval_shape(lambda: init_state(0, model, optimizer))
    step = jax.jit(make_train_step(model, optimizer, settings))
    module = jax.export.export(step, platforms=["cuda"])(state, SHAPE.abstract()).mlir_module()
    return [line for line in module.split("\n") if not line.startswith("#loc")]


def operand_types(lines: list[str]) -> list[tuple[str, str]]:
    """The types of both operands of each matrix product."""
    found = [PRODUCT.search(line) for line in lines if "stablehlo.dot_general" in line]
    assert all(found), "a product that the pattern does not read"
    return [(match[2], match[4]) for match in found if match]


def test_no_product_of_a_bfloat16_step_has_a_float32_operand():
    """Matrix units multiply float32 several times more slowly than bfloat16."""
    assert set(operand_types(exported("bfloat16"))) == {("bf16", "bf16")}
    assert set(operand_types(exported("float32"))) == {("f32", "f32")}, "the test reads types"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_step_has_the_products_of_the_equations_and_no_others(dtype):
    """Attention has 4 projections and 2 products, a feed-forward network 2; backward twice that."""
    encoder_layer, decoder_layer = 6 + 2, 6 + 6 + 2
    forward = LAYERS * (encoder_layer + decoder_layer)
    loss = 3  # logits and both gradients, in the body of the loop over blocks
    assert len(operand_types(exported(dtype))) == 3 * forward + loss


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
