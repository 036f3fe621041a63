"""Rows are labeled with the sizes that they have."""

import re
from pathlib import Path

from experiments.table3_ablations import EXPERIMENT
from transformer_jax.tables.experiment import make_jobs

KEYS = {"d_model": "d_model", "d_ff": "d_ff", "d_k": "d_k", "head": "num_heads"}
KEYS |= {"layer": "num_layers", "dropout": "dropout"}


def sizes_in(label: str) -> dict[str, float]:
    """What a label says of the model, such as d_k 16 or 2 layers."""
    before = re.findall(r"(d_\w+|dropout) ([\d.]+)", label)
    behind = [(name, number) for number, name in re.findall(r"(\d+) (head|layer)s?\b", label)]
    return {KEYS[name]: float(number) for name, number in before + behind}


def test_a_label_has_the_sizes_of_the_row_s_config(in_checkout):
    for scale, sizes in {"paper": 21, "small": 21, "converged": 21}.items():
        label = EXPERIMENT.scales[scale].label
        labeled = 0
        for job in make_jobs(EXPERIMENT, scale, Path("runs")):
            model = job.config().model
            d_k = model.d_k or model.d_model // model.num_heads
            for name, size in sizes_in(label(job.row)).items():
                assert size == (d_k if name == "d_k" else getattr(model, name)), label(job.row)
                labeled += 1
        assert labeled == sizes
    label = EXPERIMENT.scales["small"].label
    labels = [label(row) for row in EXPERIMENT.rows]
    assert "(C) 1 layer" in labels and len(set(labels)) == len(labels)
