"""Logits, loss and every gradient against PyTorch's own Transformer layers.

tests/fixtures/make_torch_fixtures.py computed the reference.
"""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

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


@functools.cache
def reference(case: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURE) as file:
        return {
            name.removeprefix(case + "/"): file[name]
            for name in file.files
            if name.startswith(case + "/")
        }


def from_torch(torch: dict[str, np.ndarray], case: str) -> dict[str, np.ndarray]:
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


def with_prefix(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): value.astype(np.float32)
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


@functools.cache
def computed(case: str, layout: str) -> tuple:
    """(batch, (sums, logits, encoded), gradients by path) of our model with PyTorch's weights."""
    torch = reference(case)
    pairs = [
        (src[src != 0].tolist(), tgt[tgt != 0].tolist())
        for src, tgt in zip(torch["src"], torch["tgt"], strict=True)
    ]
    batch = lay_out(pairs, ROWS[layout], SRC_LENGTH, TGT_LENGTH)
    params = unflatten_dict(from_torch(with_prefix(torch, "weight/"), case), sep="/")
    with jax.default_matmul_precision("highest"):
        (_, results), grads = value_and_gradients(case)(params, batch)
    flat = jax.tree_util.tree_leaves_with_path(grads)
    grads = {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in flat}
    return batch, results, grads


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
        sums = model.loss(batch, None, settings)
        return sums.smoothed_nats, (sums, model(source, target), model.encode(source))

    def loss(params: dict, batch: Batch) -> tuple:
        return model.apply({"params": params}, batch, method=results)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_logits_and_loss_equal_pytorch(case, layout):
    torch = reference(case)
    batch, (sums, logits, _), _ = computed(case, layout)
    got = of_each_pair(logits, batch, ROWS[layout])
    want = [row[ids != 0] for row, ids in zip(torch["logits"], torch["tgt"], strict=True)]
    real = np.concatenate([got[number] for number in range(len(want))])
    assert relative_error(real[:, :VOCABULARY], np.concatenate(want)) < TOLERANCE
    assert (real[:, VOCABULARY:] <= -1e8).all()
    assert float(sums.smoothed_nats) == pytest.approx(float(torch["loss"]), rel=TOLERANCE)
    assert float(sums.tokens) == (torch["tgt"] != 0).sum()


@pytest.mark.parametrize("case", CASES)
def test_encoder_output_equals_pytorch_at_real_positions(case):
    torch = reference(case)
    _, (_, _, encoded), _ = computed(case, "unpacked")
    length = torch["src"].shape[1]
    real = torch["src"] != 0
    assert relative_error(np.asarray(encoded)[:, :length][real], torch["encoded"][real]) < TOLERANCE


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_gradient_of_every_parameter_equals_pytorch(case, layout):
    want = from_torch(with_prefix(reference(case), "grad/"), case)
    _, _, got = computed(case, layout)
    assert got.keys() == want.keys()
    errors = {name: relative_error(got[name], want[name]) for name in want}
    assert max(errors.values()) < TOLERANCE, {n: e for n, e in errors.items() if e >= TOLERANCE}
    if "output/table" in got:  # untied: its rows for the padding must get no gradient
        assert not got["output/table"][VOCABULARY:].any()
