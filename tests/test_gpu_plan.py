"""The roofline of a compiled GPU program, against counts by hand of a small program's text."""

import json

import pytest

from benchmarks import gpu_plan
from benchmarks.gpu_plan import Cost, page, passed_limits
from benchmarks.gpu_roofline import BYTES_PER_S, FLOPS_PER_S, Kernel, kernels

LOSS = "jit(train_step)/jvp(EncoderDecoder.loss)"
LAYER = f"{LOSS}/EncoderDecoder.encode/source_side/encoder_0/encoder_0._run"


def named(operation: str) -> str:
    return f'metadata={{op_name="{operation}"}}'


FEED_FORWARD = named(f"{LAYER}/feed_forward_residual/feed_forward/BLD,DF->BLF/dot_general")
NORM = named(f"{LAYER}/self_attention_residual/norm/mul")
BODY = named(f"{LOSS}/while/body/x")
GATHER = named("jit(train_step)/embedding/gather")
INNER = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
TRIPS = 'backend_config={"known_trip_count":{"n":"5"}}'
STATE = "(s32[], f32[5,6,8]{2,1,0}, f32[6,8]{1,0})"
PROGRAM = f"""HloModule jit_train_step

%product (p0: bf16[6,4], p1: bf16[4,8]) -> f32[6,8] {{
  %p0 = bf16[6,4]{{1,0}} parameter(0)
  %p1 = bf16[4,8]{{1,0}} parameter(1)
  ROOT %dot.1 = f32[6,8]{{1,0}} dot(%p0, %p1), {INNER}
}}

%gathered (q0: f32[100,8], q1: s32[6,1]) -> f32[6,8] {{
  %q0 = f32[100,8]{{1,0}} parameter(0)
  %q1 = s32[6,1]{{1,0}} parameter(1)
  %twice = f32[100,8]{{1,0}} add(%q0, %q0)
  ROOT %taken = f32[6,8]{{1,0}} gather(%twice, %q1), offset_dims={{1}}
}}

%written (r0: f32[5,6,8], r1: f32[6,8], r2: s32[]) -> f32[5,6,8] {{
  %r0 = f32[5,6,8]{{2,1,0}} parameter(0)
  %r1 = f32[6,8]{{1,0}} parameter(1)
  %r2 = s32[] parameter(2)
  %new = f32[1,6,8]{{2,1,0}} bitcast(%r1)
  ROOT %updated = f32[5,6,8]{{2,1,0}} dynamic-update-slice(%r0, %new, %r2, %r2, %r2)
}}

%scattered (s0: f32[100,8], s1: s32[6,1], s2: f32[6,8]) -> f32[100,8] {{
  %s0 = f32[100,8]{{1,0}} parameter(0)
  %s1 = s32[6,1]{{1,0}} parameter(1)
  %s2 = f32[6,8]{{1,0}} parameter(2)
  ROOT %set = f32[100,8]{{1,0}} scatter(%s0, %s1, %s2), to_apply=%last
}}

%body (state: (s32[], f32[5,6,8], f32[6,8])) -> (s32[], f32[5,6,8], f32[6,8]) {{
  %state = {STATE} parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %all = f32[5,6,8]{{2,1,0}} get-tuple-element(%state), index=1
  %one = f32[6,8]{{1,0}} get-tuple-element(%state), index=2
  %place = f32[5,6,8]{{2,1,0}} fusion(%all, %one, %n), kind=kLoop, calls=%written, {BODY}
  ROOT %next = {STATE} tuple(%n, %place, %one)
}}

ENTRY %main (a: bf16[6,4], b: bf16[4,8], c: f32[100,8], d: s32[6,1]) -> f32[6,8] {{
  %a = bf16[6,4]{{1,0}} parameter(0)
  %b = bf16[4,8]{{1,0}} parameter(1)
  %c = f32[100,8]{{1,0}} parameter(2)
  %d = s32[6,1]{{1,0}} parameter(3)
  %gemm = f32[6,8]{{1,0}} fusion(%a, %b), kind=kCustom, calls=%product, {FEED_FORWARD}
  %rows = f32[6,8]{{1,0}} fusion(%c, %d), kind=kLoop, calls=%gathered, {GATHER}
  %cache = f32[100,8]{{1,0}} fusion(%c, %d, %gemm), kind=kInput, calls=%scattered, {GATHER}
  %start = {STATE} tuple(%d, %c, %gemm)
  %loop = {STATE} while(%start), condition=%c, body=%body, {TRIPS}
  ROOT %copy = f32[6,8]{{1,0}} copy(%gemm), {NORM}
}}
"""


def test_kernels_bytes_and_flops_are_those_of_the_text():
    found = {one.name: one for one in kernels(PROGRAM)}
    assert list(found) == ["gemm", "rows", "cache", "place", "copy"]
    gemm, rows, cache, place, copy = found.values()
    assert (gemm.flops, gemm.bytes) == ({"bf16": 2 * 6 * 4 * 8}, 2 * 6 * 4 + 2 * 4 * 8 + 4 * 48)
    # A gather reads the rows that it takes, not the table; the indices are int32.
    assert (rows.flops, rows.bytes) == ({}, 4 * 48 + 4 * 6 + 4 * 48)
    # A scatter in place reads indices and new values, and writes the new values.
    assert (cache.flops, cache.bytes) == ({}, 4 * 6 + 4 * 48 + 4 * 48)
    # An update in place reads and writes the slice, five times; the index has 4 bytes.
    assert (place.calls, place.bytes) == (5, 4 * 48 + 4 + 4 * 48)
    assert (copy.calls, copy.bytes) == (1, 2 * 4 * 48)
    parts = ["feed-forward", "embedding", "embedding", "loss", "norms, residuals, dropout"]
    assert [one.part for one in found.values()] == parts


def test_a_kernel_takes_as_long_as_the_slower_of_memory_and_arithmetic():
    by_memory = Kernel("a", "loss", 3, BYTES_PER_S, {"bf16": 1.0})
    by_products = Kernel("a", "loss", 2, 1.0, {"bf16": FLOPS_PER_S["bf16"], "f32": 2.8e14})
    assert by_memory.seconds == pytest.approx(3.0)
    assert by_products.seconds == pytest.approx(4.0)


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(ValueError, match="loop: how often this loop runs is not known"):
        kernels(PROGRAM.replace("known_trip_count", "unknown"))


def test_the_page_sums_the_parts_and_names_the_limits_that_are_passed():
    slow = Kernel("a", "loss", 2, 4e9, {"bf16": 1e12})
    kernels = [slow, slow._replace(part="attention", calls=1)]
    step = Cost(kernels, {"temporaries_gib": 1.5}, 60.0, flops=10**12)
    costs = {"base": step, "search": Cost(kernels, {"conditionals": 7}, 9.0)}
    text = page(costs)
    assert text.count("\n| loss | 3.2 | 2 | 7.5 | 2.00 |\n") == 2
    assert text.count("\n| **all** | 4.7 | 3 | 11.2 | 3.00 |\n") == 2
    # 1e12 FLOPs in 4.75 ms, of 790e12 FLOP/s.
    assert "At best 27% of the rate" in text and "7 conditionals" in text
    assert max(map(len, text.splitlines())) <= 100
    limits = {"base": {"milliseconds": 4.0, "kernels": 3, "temporaries_gib": 1.0}}
    assert passed_limits(costs, limits) == [
        "base: 4.7 milliseconds where 4.0 are allowed",
        "base: 1.5 temporaries_gib where 1.0 are allowed",
    ]


def test_every_size_has_limits_and_the_device_is_described():
    limits = json.loads(gpu_plan.LIMITS.read_text())
    assert limits.keys() == {*gpu_plan.SIZES, "search"}
    assert limits["search"].keys() == {"milliseconds", "kernels", "conditionals"}
    whats = {"milliseconds", "kernels", "temporaries_gib"}
    assert all(limits[size].keys() == whats for size in gpu_plan.SIZES)
    assert "memory_bandwidth: 4800000000000" in gpu_plan.DEVICE.read_text()


# Kernels that XLA did not write ------------------------------------------------------------------

CUBLAS = (
    '"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
    '"rhs_contracting_dimensions":["0"]}}'
)


def foreign(target: str, result: str, operands: list[str], rest: str) -> str:
    """A program of one custom call."""
    names = [f"%x{n}" for n in range(len(operands))]
    given = "\n".join(
        f"  {name} = {kind} parameter({n})"
        for n, (name, kind) in enumerate(zip(names, operands, strict=True))
    )
    call = f'custom-call({", ".join(names)}), custom_call_target="{target}", {rest}'
    body = f"{given}\n  ROOT %call = {result} {call}"
    return f"HloModule m\n\nENTRY %main () -> {result} {{\n{body}\n}}\n"


def test_a_product_of_cublas_counts_its_flops_and_not_its_workspace():
    operands = ["bf16[6,4]{1,0}", "bf16[4,8]{1,0}"]
    text = foreign("__cublas$lt$matmul", "(bf16[6,8]{1,0}, s8[4194304]{0})", operands, CUBLAS)
    (one,) = kernels(text)
    assert one.flops == {"bf16": 2 * 6 * 4 * 8}
    assert one.bytes == 2 * (6 * 4 + 4 * 8 + 6 * 8)


@pytest.mark.parametrize(
    ("kernel", "products"),
    [("forward_kernel", 4 + 5), ("query_kernel", 2 * 4 + 5), ("key_kernel", 2 * 4 + 2 * 5)],
)
def test_a_fused_attention_counts_the_flops_of_its_formula(kernel, products):
    """Of 2 rows, 3 heads, 6 queries and 7 keys; d_k is 4 and d_v 5."""
    query, key, value = "bf16[2,6,3,4]", "bf16[2,7,3,4]", "bf16[2,7,3,5]"
    operands = [query, "s32[2,6]", "s32[2,6]", key, value, "s32[2,7]", "s32[2,7]"]
    metadata = named(f"{LAYER}/self_attention_residual/self_attention/{kernel}/pallas_call")
    (one,) = kernels(foreign("__gpu$xla.gpu.triton", "bf16[2,6,3,5]", operands, metadata))
    assert one.flops == {"bf16": 2 * 2 * 3 * 6 * 7 * products}
    assert one.part == "attention"
    assert one.bytes == 2 * (2 * 6 * 3 * 4 + 2 * 7 * 3 * (4 + 5) + 2 * 6 * 3 * 5) + 8 * (12 + 14)


def test_a_kernel_whose_products_are_not_known_is_an_error():
    text = foreign("someone's", "f32[6]", ["f32[6]"], named("elsewhere"))
    with pytest.raises(ValueError, match="products of this kernel"):
        kernels(text)
