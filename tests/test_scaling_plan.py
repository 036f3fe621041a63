"""benchmarks/hlo.py and scaling_plan.py: what they read from HLO text, and the times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hlo import Collective, collectives, first_group, type_bytes
from benchmarks.scaling_plan import (
    CALL_SECONDS,
    H100,
    MIB,
    V5E,
    Plan,
    efficiency,
    h100_rate,
    held_and_sent,
    times,
    torus_rate,
)

ROOT = Path(__file__).parents[1]

HLO = """HloModule jit_train_step, entry_computation_layout={(f32[])->f32[]}, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="jit(train_step)/(odd) name"}
}

ENTRY %main (w: f32[8,64], v: bf16[16]) -> f32[8,64] {
  %w = f32[8,64]{1,0} parameter(0)
  %v = bf16[16]{0} parameter(1)
  %zero = s32[] constant(0)
  %iota = f32[8,64]{1,0} all-reduce(%w), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
  %again = f32[8,64]{1,0} all-reduce(%iota), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
  %gather = (bf16[16]{0}, bf16[128]{0}) all-gather-start(%v), replica_groups={}, dimensions={0}
  %both = (f32[8,64]{1,0}, bf16[16]{0}) all-reduce(%w, /*index=1*/%v), replica_groups={{0,1},{2,3}}
  %whole = f32[8,64]{1,0} all-reduce(%w), replica_groups=mesh['p'=2,'q'=4] {'q'}, to_apply=%add
  %kept = f32[8,64]{1,0} copy(%whole)
  %own = f32[2,64]{1,0} dynamic-slice(%kept, %zero, %zero), dynamic_slice_sizes={2,64}
  %all = f32[8,64]{1,0} all-reduce(%w), replica_groups=mesh['p'=2,'q'=4] {'q'}, to_apply=%add
  %part = f32[2,64]{1,0} dynamic-slice(%all, %zero, %zero), dynamic_slice_sizes={2,64}
  %use = f32[8,64]{1,0} negate(%all)
  %alone = f32[8,64]{1,0} all-reduce(%w), replica_groups=[8,1]<=[8], to_apply=%add
  %moved = bf16[16]{0} collective-permute(%v), source_target_pairs={{0,0},{3,4},{4,3}}
  ROOT %out = f32[8,64]{1,0} get-tuple-element(%both), index=0
}
"""


def found(text=HLO, devices=8):
    return {(c.kind, c.size, c.group): c.calls for c in collectives(text, devices)}


def test_collectives_of_hand_written_hlo():
    assert found() == {
        ("all-reduce", 2048, (0, 2, 4, 6)): 2,
        ("all-gather", 256, tuple(range(8))): 1,  # the size of its output, not of its input
        ("all-reduce", 2048 + 32, (0, 1)): 1,
        ("reduce-scatter", 2048, (0, 1, 2, 3)): 1,  # there is a copy between them
        ("all-reduce", 2048, (0, 1, 2, 3)): 1,  # also used as a whole
        ("collective-permute", 32, (3, 4)): 1,
    }


def test_a_share_of_another_size_leaves_an_all_reduce():
    hlo = HLO.replace("%own = f32[2,64]", "%own = f32[1,64]")
    assert found(hlo)["all-reduce", 2048, (0, 1, 2, 3)] == 2


def test_a_collective_in_a_loop_is_refused():
    with pytest.raises(ValueError, match="iota is in a loop"):
        found(HLO.replace("ENTRY %main", "%body"))


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
    assert h100_rate(group, 256) == rate


@pytest.mark.parametrize(
    ("group", "devices", "rate"),
    [
        (range(4), 8, 50e9),  # a row of 2x4
        ((0, 4), 8, 50e9),  # a column of it
        (range(8), 8, 100e9),  # both
        (range(16), 256, 100e9),  # a closed row of 16x16
        (range(256), 256, 200e9),
        (range(0, 256, 16), 256, 100e9),  # a closed column
        (range(0, 256, 8), 256, 112.5e9),  # columns 0 and 8: a closed column, 1/8 of a row
        (range(0, 16, 2), 256, 50e9),  # every second of a row: two groups share it
    ],
)
def test_rates_on_a_torus(group, devices, rate):
    assert torus_rate(group, devices) == rate


ONE = Plan("base", (1, 1, 1), 256, 1000, 2000, 8 * MIB, 989e9, 980e9, [])
EIGHT = ONE._replace(
    mesh=(8, 1, 1),
    flops=989e9 / 8,
    closed_form=980e9 / 8,
    collectives=[Collective("all-reduce", 360 * 10**6, tuple(range(8)), calls=2)],
)


def test_the_times_of_a_step():
    # 989e9 FLOPs at 40 % of 989e12 FLOP/s; Adam's 7,000 bytes take no time.
    assert ONE.compute_seconds(H100) == pytest.approx(2.5e-3, rel=1e-4)
    assert ONE.step_seconds(H100) == pytest.approx((2.5e-3, 2.5e-3), rel=1e-4)
    # Twice 2 x 7/8 x 360 MB at 80 % of 450 GB/s.
    assert EIGHT.link_seconds(H100) == pytest.approx(3.5e-3)
    compute = 2.5e-3 / 8
    worst = compute + 3.5e-3 + 2 * CALL_SECONDS
    assert EIGHT.step_seconds(H100) == pytest.approx((3.5e-3, worst), rel=1e-3)
    # On 2x4 chips, one link each way along both sides.
    assert EIGHT.link_seconds(V5E) == pytest.approx(3.5e-3 * 450 / 100)


def test_adam_is_bound_by_the_memory():
    held = ONE._replace(flops=0, parameters=10**9, optimizer=2 * 10**9)
    assert held.compute_seconds(V5E) == pytest.approx(7e9 / 819e9)


def test_efficiency_is_relative_to_the_rows_per_second_of_one_device():
    seconds = 2 * ONE.compute_seconds(H100)
    assert efficiency(EIGHT, ONE, H100, seconds) == pytest.approx(1 / 16)
    assert efficiency(EIGHT._replace(rows=2048), ONE, H100, seconds) == pytest.approx(1 / 2)


def test_tables_have_a_cell_under_each_heading():
    for table in (held_and_sent([ONE, EIGHT]), times([ONE, EIGHT], ONE, (H100, V5E))):
        heading, rule, one, eight = (line.split("|") for line in table.splitlines())
        assert len(heading) == len(rule) == len(one) == len(eight)
    *_, eight = held_and_sent([EIGHT]).splitlines()
    assert eight == "| 8 | 8, 1, 1 | 256 | 0 | 0 | 8 | 124 | 1.01 | 1,202 (2) |"


REAL = """
import json, pathlib, sys
import benchmarks.scaling_plan as plan
from benchmarks.hlo import collectives
plan.prepare_xla(4, pathlib.Path(sys.argv[1]))
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def train_step(x, left, right):
    return x, x.sum(0), left @ right

def sharded(*axes):
    return NamedSharding(mesh, P(*axes))

both = ("a", "b")
step = jax.jit(
    train_step,
    in_shardings=(sharded(both), sharded(None, both), sharded(both)),
    out_shardings=(sharded("a"), sharded(), sharded(both)),
)
shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(8, 16), (32, 8), (8, 10)]]
step.lower(*shapes).compile()
print(json.dumps(collectives(plan.partitioned(pathlib.Path(sys.argv[1])), 4)))
"""


def test_collectives_of_a_program_that_xla_partitioned(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    got = {(kind, size, *group): calls for kind, size, group, calls in json.loads(done.stdout)}
    assert got == {
        ("all-gather", 4 * 16 * 4, 0, 1): 1,  # half of x from two quarters
        ("all-reduce", 16 * 4, 0, 1, 2, 3): 1,  # the sum over rows
        # Partial products, of which each device keeps a quarter.
        ("reduce-scatter", 32 * 10 * 4, 0, 1, 2, 3): 1,
    }
