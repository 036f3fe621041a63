"""What an XLA program sends between devices, read from its text (HLO)."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

KERNELS = ("fusion", "custom-call")
BODY = re.compile(r"body=%?([\w.-]+)")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
ARRAY = re.compile(r"(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")  # a computation's first line
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\((.*?)\)(.*)$")


class Instruction(NamedTuple):
    """A line of HLO text."""

    name: str
    type: str  # of the result, such as "bf16[8,64]{1,0}", or a tuple of types
    opcode: str
    operands: tuple[str, ...]  # names
    attributes: str
    in_entry: bool  # False: inside a loop's body, a reduction or similar
    number: int | None = None  # of a parameter: which of the computation's operands it is

    @property
    def op_name(self) -> str:
        """The path of JAX scopes that the instruction comes from; empty if there is none."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


class Collective(NamedTuple):
    """A collective operation of the program."""

    kind: str  # one of KINDS
    size: int  # bytes of the whole array: all-gather's output, reduce-scatter's input
    group: tuple[int, ...]  # the devices that take part together: the first of the groups
    kernels: int = 0  # that are scheduled between its start and its end
    calls: int = 1  # in a step

    @property
    def sent(self) -> float:
        """Bytes that a device sends in all calls, by ring algorithms."""
        n, all_calls = len(self.group), self.calls * self.size
        if self.kind == "collective-permute":
            return all_calls
        return all_calls * (n - 1) / n * (2 if self.kind == "all-reduce" else 1)


def computations(text: str) -> dict[str, dict[str, Instruction]]:
    """The instructions of each computation of an HLO module's text, by their names."""
    module: dict[str, dict[str, Instruction]] = {}
    in_entry = False
    own = dict[str, Instruction]()
    for line in text.splitlines():
        if head := HEAD.match(line):
            in_entry = bool(head[1])
            own = module.setdefault(head[2], {})
        elif found := INSTRUCTION.match(line):
            name, kind, opcode, inside, attributes = found.groups()
            operands = tuple(re.findall(r"%([\w.-]+)", inside))
            number = int(inside) if opcode == "parameter" else None
            own[name] = Instruction(name, kind, opcode, operands, attributes, in_entry, number)
    return module


def array_type(text: str) -> tuple[str, list[int]]:
    """The element type and the sizes of an HLO array type: "bf16[8,64]{1,0}" is bf16, [8, 64]."""
    kind, _, rest = text.partition("[")
    return kind, [int(size) for size in rest.partition("]")[0].split(",") if size]


def type_bytes(text: str) -> int:
    """Bytes of an HLO type: "bf16[8,64]{1,0}" is 1,024; a tuple is the sum of its parts."""
    bits = 0
    for kind, digits, dimensions in ARRAY.findall(text):
        size = math.prod(int(d) for d in dimensions.split(",") if d)
        bits += size * (8 if kind == "pred" else int(digits))
    return bits // 8


def first_group(attributes: str, devices: int) -> tuple[int, ...]:
    """The devices of a collective's first group.

    XLA writes groups in three ways: as a list, {{0,1},{2,3}}; as rows of an iota, which may be
    transposed, [2,4]<=[8] and [2,4]<=[4,2]T(1,0); and as axes of a mesh of such an iota,
    mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}.
    """
    if listed := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        pairs = (tuple(map(int, pair)) for pair in re.findall(r"(\d+),(\d+)", listed[1]))
        return next((pair for pair in pairs if pair[0] != pair[1]), (0,))
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return tuple(map(int, listed[1].split(",")))
    if rows := re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[^ ]+)", attributes):
        return tuple(_iota(rows[3]).reshape(int(rows[1]), int(rows[2]))[0].tolist())
    mesh = re.search(
        r"replica_groups=mesh\[([^\]]+)\](?:, device_ids=\(([^ ]+)\))? \{([^}]*)\}", attributes
    )
    if not mesh:
        return tuple(range(devices))
    sizes = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", mesh[1])}
    chosen = mesh[3].split(",")
    if unknown := set(chosen) - sizes.keys():
        raise ValueError(f"axes {unknown} of a collective's groups are no axes of {mesh[1]}.")
    ids = _iota(mesh[2] or f"[{devices}]").reshape(list(sizes.values()))
    return tuple(ids[tuple(slice(None) if a in chosen else 0 for a in sizes)].ravel().tolist())


def _iota(text: str) -> np.ndarray:
    """The flat array that [4,2]T(1,0) describes: 0 to 7 as 4 rows of 2, transposed."""
    shape, _, order = text.strip(",").partition("T")
    sizes = [int(n) for n in re.findall(r"\d+", shape)]
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose([int(n) for n in re.findall(r"\d+", order)] or None).ravel()


def collectives(text: str, devices: int) -> list[Collective]:
    """The collectives of a compiled and scheduled program's text, in order.

    Raises:
      ValueError: the text does not say how often a collective runs, as in a loop without a count.
    """
    module = computations(text)
    runs, found = _runs(module), []
    for name, computation in module.items():
        own = [*computation.values()]
        for at, one in enumerate(own):
            kind = one.opcode.removesuffix("-start")
            group = first_group(one.attributes, devices) if kind in KINDS else ()
            if len(group) < 2:
                continue
            if not runs.get(name):
                raise ValueError(f"{one.name} runs an unknown number of times.")
            size = sum(type_bytes(computation[operand].type) for operand in one.operands)
            size *= len(group) if kind == "all-gather" else 1
            kernels = _kernels_until(f"{kind}-done", one.name, own[at + 1 :])
            found.append(Collective(kind, size, group, kernels, runs[name]))
    return found


def _kernels_until(opcode: str, name: str, later: Sequence[Instruction]) -> int:
    """Kernels before the end of what an instruction starts; 0: it does not go on beside others."""
    for at, one in enumerate(later):
        if one.opcode == opcode and name in one.operands:
            return sum(other.opcode in KERNELS for other in later[:at])
    return 0


def _runs(module: Mapping[str, Mapping[str, Instruction]]) -> dict[str, int]:
    """How often each computation runs that is the entry or a loop's body; 0: it is not known."""
    runs = {name: 1 for name, own in module.items() if any(one.in_entry for one in own.values())}
    for name in (waiting := [*runs]):
        for one in module[name].values():
            if one.opcode == "while" and (body := BODY.search(one.attributes)):
                trips = TRIPS.search(one.attributes)
                runs[body[1]] = runs[name] * int(trips[1] if trips else 0)
                waiting.append(body[1])
    return runs
