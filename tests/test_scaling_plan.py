"""benchmarks/hlo.py and scaling_plan.py: what they read from HLO text, and the times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hlo import Collective, collectives, first_group, type_bytes
from benchmarks.scaling_plan import CALL_SECONDS, MIB, Plan, link_rate, table

ROOT = Path(__file__).parents[1]

HLO = """HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[])->f32[]}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="jit(train_step)/(odd) name"}
}

ENTRY %main (w: f32[8,64], v: bf16[16]) -> f32[8,64] {
  %w = f32[8,64]{1,0} parameter(0)
  %v = bf16[16]{0} parameter(1)
  %iota = f32[8,64]{1,0} all-reduce(%w), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
  %gather = (bf16[16]{0}, bf16[128]{0}) all-gather-start(%v), replica_groups={}, dimensions={0}
  %both = (f32[8,64]{1,0}, bf16[16]{0}) all-reduce(%w, /*index=1*/%v), replica_groups={{0,1},{2,3}}
  %fused = f32[8,64]{1,0} fusion(%w), kind=kLoop, calls=%add
  %other = bf16[128]{0} all-gather-done(%iota)
  %product = f32[8,64]{1,0} custom-call(%w), custom_call_target="gemm"
  %gathered = bf16[128]{0} all-gather-done(%gather)
  %late = f32[8,64]{1,0} fusion(%w), kind=kLoop, calls=%add
  %whole = f32[2,64]{1,0} reduce-scatter(%w), replica_groups=mesh['p'=2,'q'=4] {'q'}, to_apply=%add
  %alone = f32[8,64]{1,0} all-reduce(%w), replica_groups=[8,1]<=[8], to_apply=%add
  %moved = bf16[16]{0} collective-permute(%v), source_target_pairs={{0,0},{3,4},{4,3}}
  ROOT %out = f32[8,64]{1,0} get-tuple-element(%both), index=0
}
"""


def test_collectives_of_hand_written_hlo():
    assert collectives(HLO, 8) == [
        Collective("all-reduce", 2048, (0, 2, 4, 6)),
        # The size of its output, not of its input; two kernels are done before it.
        Collective("all-gather", 256, tuple(range(8)), kernels=2),
        Collective("all-reduce", 2048 + 32, (0, 1)),
        Collective("reduce-scatter", 2048, (0, 1, 2, 3)),
        Collective("collective-permute", 32, (3, 4)),
    ]


def test_a_collective_in_a_loop_is_called_each_time():
    loops = """ENTRY %start (w: f32[8,64]) -> f32[8,64] {
  %w = f32[8,64]{1,0} parameter(0)
  %loop = f32[8,64]{1,0} while(%w), body=%main, backend_config={"known_trip_count":{"n":"6"}}
}
"""
    found = collectives(HLO.replace("ENTRY %main", "%main") + loops, 8)
    assert {one.calls for one in found} == {6}
    assert found[0].sent == 6 * 2 * 2048 * 3 / 4
    for text in (HLO.replace("ENTRY %main", "%body"), loops.replace("known", "")):
        with pytest.raises(ValueError, match="iota runs an unknown number of times"):
            collectives(HLO.replace("ENTRY %main", "%main") + text, 8)


def test_bytes_of_a_type_are_those_of_its_parts():
    text = "(f32[2,3]{1,0}, /*index=1*/pred[3], s8[4], f8e4m3fn[2], bf16[5], u32[])"
    assert type_bytes(text) == 24 + 3 + 4 + 2 + 10 + 4


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("[4,2]<=[2,2,2]T(2,1,0)", (0, 4)),
        ("mesh['a'=2,'b'=4] {'a'}", (0, 4)),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 1, 4, 5)),
        # Of 2 x 4 devices transposed: rows [0 4] [1 5] [2 6] [3 7].
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", (0, 4)),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", (0, 1, 2, 3)),
    ],
)
def test_the_first_group_however_it_is_written(groups, first):
    assert first_group(f", channel_id=1, replica_groups={groups}, dimensions={{0}}", 8) == first


def test_parts_of_an_axis_are_refused():
    with pytest.raises(ValueError, match="are no axes of"):
        first_group("replica_groups=mesh['a'=8] {'a':(1)2}", 8)


def test_bytes_sent_by_rings():
    four = (0, 1, 2, 3)
    assert Collective("all-reduce", 1000, four).sent == 1500
    assert Collective("all-gather", 1000, four).sent == 750
    assert Collective("reduce-scatter", 1000, four).sent == 750
    assert Collective("all-to-all", 1000, four).sent == 750
    assert Collective("collective-permute", 1000, (0, 1)).sent == 1000


@pytest.mark.parametrize(
    ("group", "rate"),
    [
        (range(8), 450e9),  # one node
        (range(8, 16), 450e9),
        (range(0, 256, 8), 50e9),  # one GPU of each node
        (range(0, 16, 2), 200e9),  # four of each of two nodes
        (range(256), 400e9),  # eight of each
    ],
)
def test_rates_between_gpus(group, rate):
    assert link_rate(group) == rate


REDUCED = Collective("all-reduce", 360 * 10**6, tuple(range(8)), kernels=20)
ONE = Plan("base", (1, 1, 1), 1000, 2000, 8 * MIB, 0.326 * 989e9, [])
EIGHT = ONE._replace(mesh=(8, 1, 1), collectives=[REDUCED, REDUCED._replace(kernels=0)])


def test_the_times_of_a_step():
    # The FLOPs of a millisecond at the share of the peak that base reaches. Adam's update moves
    # 7,000 bytes, which takes no time worth counting.
    assert ONE.compute_seconds == pytest.approx(1e-3, rel=1e-4)
    assert ONE.link_seconds == 0
    # Twice 2 x 7/8 x 360 MB at 80 % of 450 GB/s.
    assert EIGHT.link_seconds == pytest.approx(3.5e-3 + 2 * CALL_SECONDS)


def test_adam_is_bound_by_the_memory():
    held = ONE._replace(flops=0, parameters=10**9, optimizer=2 * 10**9)
    assert held.compute_seconds == pytest.approx(7e9 / 4.8e12)


def test_a_table_has_a_cell_under_each_heading():
    heading, rule, one, eight = (
        line.split("|") for line in table([ONE, EIGHT], alone=1e-3).splitlines()
    )
    assert len(heading) == len(rule) == len(one) == len(eight)
    cells = [cell.strip() for cell in eight[1:-1]]
    assert cells[0] == "8, 1, 1" and cells[3:5] == ["8", "1,202 (2)"]
    # Links of 3.52 ms and compute of 1 ms, which overlap or do not.
    assert cells[-5:] == ["50%", "1.0", "3.5", "3.5 to 4.5", "28% to 22%"]


REAL = """
import json, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from benchmarks.hlo import collectives

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def sharded(*axes):
    return NamedSharding(mesh, P(*axes))

step = jax.jit(
    lambda x: (x, x.sum(0)),
    in_shardings=sharded(("a", "b")),
    out_shardings=(sharded("a"), sharded()),
)
compiled = step.lower(jax.ShapeDtypeStruct((8, 16), jnp.float32)).compile()
print(json.dumps(collectives(compiled.as_text(), 4)))
"""


def test_collectives_of_a_program_that_xla_partitioned():
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted((kind, size, group) for kind, size, group, *_ in json.loads(done.stdout)) == [
        ("all-gather", 4 * 16 * 4, [0, 1]),  # half of x from two quarters
        ("all-reduce", 16 * 4, [0, 1, 2, 3]),  # the sum over rows
    ]
