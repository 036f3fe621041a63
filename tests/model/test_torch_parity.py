"""Logits, loss and every gradient against PyTorch's own Transformer layers.

tests/fixtures/make_torch_fixtures.py computed the reference.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import lay_out, model_inputs, of_each_pair, relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.text.batches import Batch

FIXTURE = Path(__file__).parents[1] / "fixtures" / "torch_parity.npz"
TOLERANCE = 1e-5  # relative error of each tensor, float32
VOCABULARY, D_MODEL, HEADS, LAYERS = 41, 12, 3, 2
SRC_LENGTH, TGT_LENGTH = 18, 16
# Five rows either way, so that one compilation serves both; two of the packed rows are all padding.
ROWS = {"unpacked": [[0], [1], [2], [3], [4]], "packed": [[0, 1], [3, 4], [], [2], []]}
CASES = {
    "post": {"norm": "post"},
    "pre": {"norm": "pre"},
    "post_untied_learned": {"tie_embeddings": False, "positions": "learned"},
}


def with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


@functools.cache
def reference(case: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURE) as file:
        return with_prefix(file, f"{case}/")


def from_torch(torch: Mapping[str, np.ndarray], case: str) -> dict[str, np.ndarray]:
    """PyTorch's weights (or their gradients) by the names and in the shapes of this project."""
    flat: dict[str, np.ndarray] = {}

    def norm(name: str, torch_name: str) -> None:
        flat[f"{name}/scale"] = torch[f"{torch_name}.weight"]
        flat[f"{name}/bias"] = torch[f"{torch_name}.bias"]

    def attention(name: str, torch_name: str) -> None:
        # PyTorch computes x W^T, with W of queries, keys and values stacked: [3 D, D].
        projections = np.split(torch[f"{torch_name}.in_proj_weight"], 3)
        for part, weight in zip(("query", "key", "value"), projections, strict=True):
            flat[f"{name}/{part}"] = weight.T.reshape(D_MODEL, HEADS, -1)
        out = torch[f"{torch_name}.out_proj.weight"]
        flat[f"{name}/out"] = out.T.reshape(HEADS, -1, D_MODEL)

    for side, attentions in (
        ("encoder", {"self_attention": "self_attn"}),
        ("decoder", {"self_attention": "self_attn", "cross_attention": "multihead_attn"}),
    ):
        for n in range(LAYERS):
            here, there = f"{side}_{n}", f"{side}.layers.{n}"
            for i, (name, torch_name) in enumerate(attentions.items(), start=1):
                attention(f"{here}/{name}", f"{there}.{torch_name}")
                norm(f"{here}/{name}_residual/norm", f"{there}.norm{i}")
            norm(f"{here}/feed_forward_residual/norm", f"{there}.norm{len(attentions) + 1}")
            for name, torch_name in (("inner", "linear1"), ("outer", "linear2")):
                flat[f"{here}/feed_forward/{name}"] = torch[f"{there}.{torch_name}.weight"].T
                flat[f"{here}/feed_forward/{name}_bias"] = torch[f"{there}.{torch_name}.bias"]
        if CASES[case].get("norm") == "pre":
            norm(f"{side}_norm", f"{side}.norm")
    flat["embedding/table"] = padded(torch["embedding.weight"])
    if "output.weight" in torch:
        flat["tgt_embedding/table"] = padded(torch["tgt_embedding.weight"])
        flat["output/table"] = padded(torch["output.weight"])
        flat["src_positions/table"] = torch["src_positions.weight"]
        flat["tgt_positions/table"] = torch["tgt_positions.weight"]
    return flat


def padded(table_VD: np.ndarray) -> np.ndarray:
    return np.pad(table_VD, ((0, 128 - VOCABULARY), (0, 0)))


@functools.cache
def value_and_gradients(case: str):
    changes = {"positions": "sinusoidal", "tie_embeddings": True, **CASES[case]}
    config = ModelConfig(
        num_layers=LAYERS, d_model=D_MODEL, num_heads=HEADS, d_ff=20, dropout=0.0,
        max_positions=18, **changes,
    )  # fmt: skip
    model = make_model(config, VOCABULARY)
    settings = LossSettings(0.1, VOCABULARY, "float32", block=16, replicas=1)

    def results(model: EncoderDecoder, batch: Batch) -> tuple:
        source, target = model_inputs(batch)
        sums, _ = model.loss(batch, None, settings)
        return sums.smoothed_nats, (sums, model(source, target), model.encode(source))

    def loss(params: dict, batch: Batch) -> tuple:
        return model.apply({"params": params}, batch, method=results)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("case", first_quick(CASES, 2))
def test_outputs_loss_and_gradients_equal_pytorch_s(case, layout):
    torch = reference(case)
    src, tgt = torch["src"], torch["tgt"]
    pairs = [tuple(ids[ids != 0].tolist() for ids in pair) for pair in zip(src, tgt, strict=True)]
    batch = lay_out(pairs, ROWS[layout], SRC_LENGTH, TGT_LENGTH)
    flat = from_torch(with_prefix(torch, "weight/"), case)
    params = unflatten_dict(jax.tree.map(np.float32, flat), sep="/")
    with jax.default_matmul_precision("highest"):
        (loss, (sums, logits, encoded)), gradients = value_and_gradients(case)(params, batch)

    got = of_each_pair(logits, batch, ROWS[layout])
    real = np.concatenate([got[number] for number in range(len(pairs))])
    assert relative_error(real[:, :VOCABULARY], torch["logits"][tgt != 0]) < TOLERANCE
    assert (real[:, VOCABULARY:] <= -1e8).all()
    assert float(loss) == pytest.approx(float(torch["loss"]), rel=TOLERANCE)
    assert float(sums.tokens) == (tgt != 0).sum()
    if layout == "unpacked":
        own = np.asarray(encoded)[:, : src.shape[1]][src != 0]
        assert relative_error(own, torch["encoded"][src != 0]) < TOLERANCE

    wants = from_torch(with_prefix(torch, "grad/"), case)
    founds = flatten_dict(gradients, sep="/")
    assert founds.keys() == wants.keys()
    errors = {name: relative_error(founds[name], wants[name]) for name in wants}
    assert max(errors.values()) < TOLERANCE, {n: e for n, e in errors.items() if e >= TOLERANCE}
    if "output/table" in founds:  # untied: its rows for the padding must get no gradient
        assert not founds["output/table"][VOCABULARY:].any()
