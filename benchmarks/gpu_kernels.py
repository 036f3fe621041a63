"""Checks the errors, the repeatability and the speed of the project's own GPU kernels.

    python -m benchmarks.gpu_kernels

It runs fused attention, residuals and loss, and the plain functions beside them, in bfloat16, and
reports the error of both against the plain functions in float32. It calls each kernel twice, checks
that the bits are the same, and times kernel and plain function. It needs jax and flax only, and
takes a minute. It prints Markdown, and fails if a kernel's error is more than 1.5 times that of the
plain function, or if its bits change. --contenders adds two attentions that might replace ours:
our kernel with a range of blocks in place of a test of each, and cuDNN's for packed sequences. On a
CPU, where Pallas interprets the kernels and cuDNN is not there, use small sizes: --rows=2
--length=64 --vocabulary=1000."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from benchmarks.turns import by_turns, markdown, timed
from transformer_jax.errors import RunError
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.patterns import Pattern, causal, mask_of, same_sentence
from transformer_jax.model.attention.scores import inverse_root
from transformer_jax.model.interfaces import Place
from transformer_jax.model.kernels import fused_attention
from transformer_jax.model.kernels.choices import Keys, Queries, Setting
from transformer_jax.model.kernels.fused_attention import fused_attend
from transformer_jax.model.kernels.fused_loss import fused_loss_and_gradient
from transformer_jax.model.kernels.fused_residual import Norm, Summands, fused_residual
from transformer_jax.model.kernels.fused_residual import Setting as Residual
from transformer_jax.model.layers.dropout import NoiseSource, keep_from, noise_bits
from transformer_jax.model.layers.norms import DEFAULT_EPSILON, layer_norm
from transformer_jax.model.outputs.cross_entropy import LossSettings, loss_and_gradient
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

HEADS, D_K, D_MODEL = 8, 64, 512
REPEATS = 20  # calls of each function, by turns; the median counts
MOST_ERROR = 1.5  # times the plain function's
FLAGS = (
    Flag("rows", int, "N", "packed rows of a batch", default=104),
    Flag("length", int, "N", "positions of a row", default=256),
    Flag("vocabulary", int, "N", "of the loss", default=37_000),
    Flag("contenders", bool, "", "two other attentions too", default=False),
)
Attention = Callable[[Queries, Keys, Setting], Array]


class Case(NamedTuple):
    """A kernel, the plain function of the same contract, and their arguments in float32."""

    name: str
    fused: Callable[..., Any]
    plain: Callable[..., Any]
    arrays: tuple[Any, ...]
    dtype: Any = jnp.bfloat16  # of the arguments of kernel and plain function
    exact: Callable[..., Any] | None = None  # with float32 results, if `plain` has others


def packed_places(rows: int, length: int) -> Place:
    """Sentences of 5 to 60 positions, and some padding at the end of each row."""
    draw = np.random.default_rng(0)
    segments, positions = np.zeros((2, rows, length), np.int32)
    for row in range(rows):
        ends = np.cumsum(draw.integers(5, 61, length // 5 + 1))
        begin = 0
        for number, end in enumerate(ends[ends <= length], start=1):
            segments[row, begin:end] = number
            positions[row, begin:end] = np.arange(end - begin)
            begin = end
    return Place(jnp.asarray(segments), jnp.asarray(positions))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function from the arguments and the output's gradient to output and gradients."""

    def run(*arrays: Any) -> Any:
        out, pull = jax.vjp(function, *arrays[:-1])
        return out, *pull(arrays[-1])

    return jax.jit(run)


def attention_case(
    name: str, patterns: tuple[Pattern, ...], place: Place, attention: Attention = fused_attend
) -> Case:
    """The output of attention, and its gradients by queries, keys and values."""
    rows, length = place.segments.shape
    draw = np.random.default_rng(1)
    real = (place.segments != 0)[:, :, None, None]
    arrays = tuple(jnp.asarray(draw.normal(size=(4, rows, length, HEADS, D_K)), jnp.float32))

    def fused(query: Any, key: Any, value: Any) -> Any:
        setting = Setting(patterns, inverse_root(D_K))
        out = attention(Queries(query, place), Keys(key, value, place), setting)
        return jnp.where(real, out, 0)

    def plain(query: Any, key: Any, value: Any) -> Any:
        def normalize(scores: Any, mask: Any) -> Any:
            return softmax(scores, mask, kept=str(query.dtype))

        mask = mask_of(patterns, place, place)
        return jnp.where(real, attend(query, key, value, mask, normalize=normalize)[0], 0)

    return Case(name, with_gradients(fused), with_gradients(plain), arrays)


def by_range(case: Case) -> Case:
    """The case with fused attention over the blocks from the first to the last that it may see.

    Its loops over blocks have no condition inside, so the compiler fetches the next block while it
    computes one (Triton's pipelining). Each mask inside the range is computed twice.
    """

    def over_blocks(length: int, mask: Any, add: Any, start: Any) -> Any:
        block = fused_attention._block(length)
        blocks = length // block

        def widened(number: Any, found: Any) -> Any:
            first, end = found
            allowed = mask(pl.ds(number * block, block)).astype(jnp.int32).max() > 0
            return (
                jnp.where(allowed, jnp.minimum(first, number), first),
                jnp.where(allowed, number + 1, end),
            )

        def one(number: Any, carry: Any) -> Any:
            at = pl.ds(number * block, block)
            return add(at, mask(at), carry)

        none = jnp.int32(blocks), jnp.int32(0)
        return jax.lax.fori_loop(*jax.lax.fori_loop(0, blocks, widened, none), one, start)

    def fused(*arrays: Any) -> Any:
        with mock.patch.object(fused_attention, "_over_blocks", over_blocks):  # while it is traced
            return case.fused(*arrays)

    return case._replace(name=f"{case.name}, blocks in a range", fused=fused)


def by_cudnn(queries: Queries, keys: Keys, setting: Setting) -> Array:
    """cuDNN's attention of packed sequences, which JAX offers in a private module.

    Queries and keys have the same places; the patterns are `same_sentence`, and `causal` or not.
    """
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    lengths, offsets = map(jnp.asarray, sequences(np.asarray(queries.place.segments)))
    return dot_product_attention(
        queries.query,
        keys.key,
        keys.value,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=offsets,
        kv_offsets=offsets,
        scale=setting.factor,
        mask_type=MaskType.PADDING_CAUSAL if causal in setting.patterns else MaskType.PADDING,
    )


def sequences(segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths `[rows, most]` and first positions `[rows, most + 1]` of packed sentences; -1: none.

    Args:
      segments: int `[rows, length]`, 1, 2, ... from the left, then 0 for padding.
    """
    numbers = np.arange(1, segments.max() + 1)[:, None]
    lengths = (segments[:, None] == numbers).sum(2)
    starts = np.where(lengths, lengths.cumsum(1) - lengths, -1)
    lengths = np.where(lengths, lengths, -1)
    return lengths.astype(np.int32), np.pad(starts, ((0, 0), (0, 1)), constant_values=-1).astype(
        np.int32
    )


def residual_case(rows: int, length: int) -> Case:
    """The norm of x + dropout(y), and its gradients by x, y, gain and bias."""
    rate = 0.1
    draw = np.random.default_rng(3)
    key = jax.random.key(0)
    noise_source = NoiseSource(noise_bits(key), jnp.arange(rows))
    x, y, cotangent = draw.normal(size=(3, rows, length, D_MODEL))
    scale, bias = draw.normal(size=(2, D_MODEL))
    arrays = tuple(jnp.asarray(a, jnp.float32) for a in (x, y, scale, bias, cotangent))

    def fused(x: Any, y: Any, scale: Any, bias: Any) -> Any:
        norm = Norm(scale.astype(jnp.float32), bias.astype(jnp.float32))
        return fused_residual(Summands(x, y), norm, noise_source, Residual(rate, DEFAULT_EPSILON))

    def plain(x: Any, y: Any, scale: Any, bias: Any) -> Any:
        keep = keep_from(0, (length, D_MODEL), noise_source, rate)
        dropped = jnp.where(keep, y.astype(jnp.float32) / (1 - rate), 0.0)
        norm = scale.astype(jnp.float32), bias.astype(jnp.float32)
        return layer_norm((x + dropped).astype(x.dtype), *norm).astype(x.dtype)

    return Case("residual and norm", with_gradients(fused), with_gradients(plain), arrays)


def loss_case(rows: int, length: int, vocabulary: int) -> Case:
    """The sums of the loss, and the gradient by the logits."""
    padded = -(-vocabulary // 128) * 128
    draw = np.random.default_rng(2)
    shape = (1, max(rows // 4, 1), length)  # a block of the loss
    logits = jnp.asarray(draw.normal(size=(*shape, padded)), jnp.float32)
    targets = draw.integers(0, vocabulary, shape)
    real = draw.random(shape) < 0.98

    def fused(logits: Any) -> Any:
        settings = LossSettings(0.1, vocabulary, "bfloat16", block=1, replicas=1)
        return fused_loss_and_gradient(logits, targets, real, settings)

    def exact(logits: Any) -> Any:
        return loss_and_gradient(logits, targets, real, 0.1, vocabulary)

    def plain(logits: Any) -> Any:
        sums, gradient = exact(logits)
        return sums, gradient.astype(jnp.bfloat16)

    # Products in bfloat16 have logits in float32 as their result.
    return Case("loss", jax.jit(fused), jax.jit(plain), (logits,), jnp.float32, jax.jit(exact))


def error(found: Any, exact: Any) -> float:
    """The root of the mean square of the differences, relative to that of the exact values."""
    wrong = whole = 0.0
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        wanted = np.asarray(y, np.float64)
        wrong += np.square(np.asarray(x, np.float64) - wanted).sum()
        whole += np.square(wanted).sum()
    return float(np.sqrt(wrong / whole))


def measured(case: Case) -> tuple[list[str], list[str]]:
    """A row of the table, and what is wrong."""
    narrow = tuple(x.astype(case.dtype) for x in case.arrays)
    exact = (case.exact or case.plain)(*case.arrays)
    fused, again, plain = case.fused(*narrow), case.fused(*narrow), case.plain(*narrow)
    own, plain_error = error(fused, exact), error(plain, exact)
    same = all(jax.tree.leaves(jax.tree.map(np.array_equal, fused, again)))
    calls = {
        of: lambda of=of: timed(lambda: jax.block_until_ready(of(*narrow)))
        for of in (case.fused, case.plain)
    }
    fast, slow = (1e3 * np.median(times) for times in by_turns(calls, REPEATS).values())
    figures = [f"{x:.3g}" for x in (1e3 * own, 1e3 * plain_error, fast, slow)]
    row = [case.name, *figures[:2], "yes" if same else "no", *figures[2:], f"{slow / fast:.2f}"]
    right = own < MOST_ERROR * plain_error  # False of NaN
    problems = [f"{case.name}: wrong"] * (not right)
    return row, problems + [f"{case.name}: two calls differ"] * (not same)


def main() -> None:
    """Prints the table. Raises RunError if a kernel is wrong or not repeatable."""
    values = parse_experiment("gpu_kernels", __doc__, FLAGS, takes_keys=False)
    rows, length = values["rows"], values["length"]
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {rows} rows of {length}\n")
    place = packed_places(rows, length)
    cases = list[Case]()
    for side, patterns in (("encoder", (same_sentence,)), ("decoder", (same_sentence, causal))):
        name = f"attention, {side}"
        cases.append(attention_case(name, patterns, place))
        if values["contenders"]:
            cases.append(by_range(attention_case(name, patterns, place)))
            cases.append(attention_case(f"{name}, cuDNN", patterns, place, by_cudnn))
    cases += [residual_case(rows, length), loss_case(rows, length, values["vocabulary"])]
    table, problems = zip(*map(measured, cases), strict=True)
    head = ["kernel", "error, 1e-3", "plain's", "same bits", "ms", "plain's", "plain / kernel"]
    print(markdown(head, table))
    if wrong := sum(problems, start=[]):
        raise RunError("; ".join(wrong) + ".")


if __name__ == "__main__":
    sys.exit(exit_status(main))
