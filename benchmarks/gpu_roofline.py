"""How long a compiled GPU program would take at best, kernel by kernel, from its text (HLO).

A kernel takes as long as the slower of its memory traffic and its arithmetic. Times are lower
bounds: launches, imperfect kernels and waiting are not in them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.hlo import TRIPS, Instruction, array_type, computations, type_bytes

BYTES_PER_S = 4.0e12  # of an H200's memory, 4.8e12 as the vendor prints it
MATRIX_RATE = 790e12  # FLOP/s of large bfloat16 products of an H200; assumed, as all rates here
# Of a step's products, by type of the operands. Those in bfloat16 are too small for MATRIX_RATE.
FLOPS_PER_S = {"bf16": 0.8 * MATRIX_RATE, "f32": 280e12}
# Operations that are not kernels: they move no data.
FREE = {
    "parameter",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "constant",
    "after-all",
    "partition-id",
}
# Products of the project's own kernels for each pair of a query and a key: over d_k, and over d_v.
KERNELS = {
    "forward_kernel": (1, 1),
    "query_kernel": (2, 1),
    "key_kernel": (2, 2),
    "loss_kernel": (0, 0),
    "residual_kernel": (0, 0),
    "residual_gradient_kernel": (0, 0),
}
SLICES = {"dynamic-slice", "gather", "slice"}
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # and the operand that has the new values
ELEMENTWISE = {"bitcast", "convert", "select", "multiply", "add", "subtract", "negate", "reshape"}
# The part of the model that a kernel belongs to: the first whose pattern is in the name of its last
# operation. A fused kernel may hold operations of the part before, too.
PARTS = {
    "loss": r"EncoderDecoder\.loss\)*/while",
    "norms, residuals, dropout": r"_residual/(norm|dropout|add|jit)|_norm/|_residual/[^/]*$",
    "projections": r"attention\._product",
    "attention": r"_attention(\.step)?/",
    "feed-forward": r"feed_forward/",
    "embedding": r"embedding",
    "logits": r"DV->\.\.\.V/",
    "log softmax, choice of hypotheses": r"^jit\(search_step\)/(?!EncoderDecoder)",
}
OTHER = "optimizer and the rest"


class Kernel(NamedTuple):
    """A kernel of the program, with all its calls in a step."""

    name: str
    part: str
    calls: int
    bytes: float  # of one call: operands and results
    flops: dict[str, float]  # of one call's products, by the type of their operands

    @property
    def seconds(self) -> float:
        """The least time of all calls."""
        arithmetic = sum(flops / FLOPS_PER_S[kind] for kind, flops in self.flops.items())
        return self.calls * max(self.bytes / BYTES_PER_S, arithmetic)


WORKSPACE = r"[su]8\[\d+\]"  # scratch memory of a library's product, which it may leave unused
Module = dict[str, dict[str, Instruction]]  # {computation: {name: instruction}}
CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.-]+)")


def kernels(text: str) -> list[Kernel]:
    """Every kernel of a compiled program; those of a loop's body are called once a trip.

    Of the branches of a conditional, the slowest one counts.

    Raises:
      ValueError: the text does not show how often a loop runs.
    """
    module = computations(text)
    entry = next(name for name, own in module.items() if any(x.in_entry for x in own.values()))
    return list(_kernels(module, entry, 1))


def _kernels(module: Module, computation: str, calls: int) -> Iterator[Kernel]:
    instructions = module[computation]
    for one in instructions.values():
        called = CALLED.search(one.attributes)
        if one.opcode == "while" and called:
            trips = TRIPS.search(one.attributes)
            if not trips:
                raise ValueError(f"{one.name}: how often this loop runs is not known.")
            yield from _kernels(module, called[1], calls * int(trips[1]))
        elif one.opcode in ("call", "async-start") and called:
            yield from _kernels(module, called[1], calls)
        elif one.opcode == "conditional":
            branches = [list(_kernels(module, name, calls)) for name in _branches(one)]
            yield from max(branches, key=lambda own: sum(kernel.seconds for kernel in own))
        elif one.opcode not in FREE and not one.opcode.endswith("-done"):
            body = module.get(called[1], {}) if called and one.opcode == "fusion" else {}
            flops = _flops(module, body) if body else _flops(module, {one.name: one}, instructions)
            moved = _moved(one, instructions, body)
            yield Kernel(one.name, part_of(one.op_name), calls, moved, flops)


def conditionals(text: str) -> int:
    """The number of conditionals. The GPU may wait for the host at each of them."""
    module = computations(text).values()
    return sum(one.opcode == "conditional" for own in module for one in own.values())


def _branches(one: Instruction) -> list[str]:
    found = re.search(r"branch_computations=\{([^}]*)\}", one.attributes)
    if found:
        return [name.strip().lstrip("%") for name in found[1].split(",")]
    return re.findall(r"(?:true|false)_computation=%?([\w.-]+)", one.attributes)


def _moved(one: Instruction, instructions: dict[str, Instruction], body: dict) -> float:
    """Bytes that a kernel reads and writes; of an operand that is only sliced, the slices."""
    read = 0
    parameters = {x.number: x.name for x in body.values() if x.number is not None}
    updated, written = _updated_in_place(body) or (None, 0)
    for number, name in enumerate(one.operands):
        whole = type_bytes(instructions[name].type) if name in instructions else 0
        inner = parameters.get(number)
        if inner is not None and inner == updated:
            continue
        sliced = None if inner is None else _sliced(inner, body)
        read += whole if sliced is None else min(whole, sliced)
    if updated:
        return read + written
    return read + type_bytes(re.sub(WORKSPACE, "", one.type))


def _sliced(name: str, body: dict[str, Instruction]) -> int | None:
    """Bytes of the slices of an array that a fusion reads; None if it reads the whole array.

    A gather of x * 2 reads only the elements of x that it gathers, so operations on single elements
    are followed to what uses their results.
    """
    total = 0
    for user in (one for one in body.values() if name in one.operands):
        if user.opcode in SLICES and user.operands[0] == name:
            total += type_bytes(user.type)
        elif user.opcode in ELEMENTWISE:
            further = _sliced(user.name, body)
            if further is None:
                return None
            total += further
        elif user.opcode not in SLICES:  # an index of a slice is small
            return None
    return total or None


def _updated_in_place(body: dict[str, Instruction]) -> tuple[str, int] | None:
    """If a fusion writes only a part of a parameter: the parameter's name and the part's bytes.

    A scatter that adds to the old values would read them too; here scatters replace them.
    """
    updates = [x for x in body.values() if x.opcode in UPDATES]
    if len(updates) != 1:
        return None
    [update] = updates
    name = update.operands[0]
    while name in body and body[name].opcode in ("bitcast", "copy"):
        name = body[name].operands[0]
    if name not in body or body[name].opcode != "parameter":
        return None
    return name, type_bytes(body[update.operands[UPDATES[update.opcode]]].type)


def _flops(module: Module, body: dict, outside: dict | None = None) -> Counter[str]:
    """FLOPs of the products in a fusion, also in those inside it, by the type of their operands."""
    total = Counter[str]()
    for one in body.values():
        if one.opcode == "dot":
            kind, sizes = array_type((outside or body)[one.operands[0]].type)
            axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
            summed = [sizes[int(n)] for n in axes[1].split(",") if n] if axes else []
            total[kind] += 2 * math.prod([*summed, *array_type(one.type)[1]])
        elif one.opcode == "custom-call":
            kind, flops = _foreign_flops(one, outside or body)
            total[kind] += flops
        elif one.opcode in ("fusion", "call") and (called := CALLED.search(one.attributes)):
            total.update(_flops(module, module[called[1]]))
    return total


def _foreign_flops(one: Instruction, operands: dict[str, Instruction]) -> tuple[str, float]:
    """FLOPs of a product of cuBLAS or of a kernel of fused_attention.py, by formula.

    Raises:
      ValueError: another foreign kernel, whose products are not known.
    """
    kind, left = array_type(operands[one.operands[0]].type)
    if "__cublas" in one.attributes:
        axis = re.search(r'"lhs_contracting_dimensions":\["(\d+)"\]', one.attributes)
        assert axis is not None
        result = array_type(one.type.removeprefix("("))[1]
        return kind, 2 * math.prod(result) * left[int(axis[1])]
    for name, (of_keys, of_values) in KERNELS.items():
        if f"/{name}/" in one.attributes:
            if not of_keys:
                return kind, 0
            batch, length, heads, d_k = left
            _, keys, _, d_v = array_type(operands[one.operands[4]].type)[1]
            pairs = batch * heads * length * keys
            return kind, 2 * pairs * (of_keys * d_k + of_values * d_v)
    raise ValueError(f"{one.name}: the products of this kernel are not known.")


def part_of(name: str) -> str:
    """The part of the model that an operation of this name belongs to."""
    return next((part for part, piece in PARTS.items() if re.search(piece, name)), OTHER)
