"""Restricted self-attention: must a word be within reach of its layers, and what does a step cost?

    python -m experiments.windows --seeds=0,1,2

The question: with a window of r positions, a layer of the encoder carries information over
(r - 1) / 2 positions, and N layers over N (r - 1) / 2, the model's reach. Section 4 of the paper
says that restricted self-attention needs more layers to connect distant words. Does a German verb
at the end of its clause, whose English verb is d words from the place just translated, need a reach
of at least d? And what are the time and memory of a training step for sources of 256 to 4,096
subwords?

The rows are pre-norm models of d_model 128 on the built-in corpus, 1,000 steps of 1,000 target
subwords, with 1, 2 and 3 layers on each side: windows of 3, 5, 9 and 17 positions and the whole
sentence, in encoder and decoder. Encoder-decoder attention always sees the whole source. The
accuracy of words is measured in forced decoding of the test split: a word is right if the model
ranks each of its subwords first. A word's jump d comes from the gold alignment: take the source
word after those that are linked to the last target word with links; d is its distance, in words, to
the nearest source word that is linked to this target word. It is 0 where both languages have the
same order. A word has 1.13 subwords on average, so that of the words counted as within reach up to
a sixth are out of it, which can only make differences smaller.

The rule, written before the runs, for each window with words out of reach (d above N (r - 1) / 2).
The loss of accuracy is that against the whole sentence with as many layers and the same seed. "A
word needs to be within reach" holds if the loss is larger for words out of reach than for the other
words with d > 0, by Student's t over seeds, p < 0.05; it does not hold if the 95 % interval of the
difference is below 2 points; otherwise it is not decided.
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evidence import Evidence, Found, answers, of_jobs, of_seeds
from experiments.judging import judged, mean_text, side_by_side
from experiments.short_demo import SHORT_DEMO
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import of_row, text_of

WINDOWS = (3, 5, 9, 17, None)
LAYERS = (1, 2, 3)
PAIRS = 1_000  # of the test split
FARTHEST = 7  # jumps from here on are counted together
LONGEST = 256  # subwords of a sentence
# Of points of accuracy that words out of reach lose more than others.
NEEDS_REACH = functools.partial(judged, limit=0.0, wanted=1, refuted=2.0)
LENGTHS = (256, 512, 1_024, 2_048, 4_096)  # of the source
MEASURED = 9  # the window whose step is measured
COST = "cost of a step"  # its name in results.jsonl
COST_HEAD = ["source", "ms of processor time, whole sentence", f"window {MEASURED}"]
COST_HEAD += ["MiB, whole sentence", f"window {MEASURED}"]
SHOWN = {"0": (0,), "1 or 2": (1, 2), "3 or 4": (3, 4)}  # jumps, in the table
SHOWN |= {"5 and more": (*range(5, FARTHEST + 1),)}

ByJump = Sequence[tuple[int, int]]  # for each jump: words, and right ones


def name_of(window: int | None, layers: int) -> str:
    """A row's name."""
    layer = "layer" if layers == 1 else "layers"
    return f"{layers} {layer}, " + ("whole sentence" if window is None else f"window {window}")


ROWS: dict[str, Overrides] = {
    name_of(window, layers): {"model.num_layers": layers, "model.window": window}
    for layers in LAYERS
    for window in WINDOWS
}


def reach(window: int, layers: int) -> int:
    """Over how many positions the layers of the encoder carry information."""
    return layers * (window - 1) // 2


# Accuracy by jump ----------------------------------------------------------------------------


def jumps(links: Sequence[tuple[int, int]], words: int) -> list[int | None]:
    """The jump of each target word; None: it has no link.

    Args:
      links: (source word, target word), 0-based.
      words: number of target words.
    """
    sources: list[list[int]] = [[] for _ in range(words)]
    for source, target in links:
        sources[target].append(source)
    found: list[int | None] = []
    following = 0  # the source word after those of the last linked target word
    for own in sources:
        found.append(min(abs(source - following) for source in own) if own else None)
        following = max(own) + 1 if own else following
    return found


def accuracy_by_jump(job: Job) -> Evidence:
    """For each jump, the number of target words and of right ones."""
    from transformer_jax.api import load
    from transformer_jax.text.built_in_corpus import built_in_pairs
    from transformer_jax.text.words import subword_words

    pairs = built_in_pairs("test", PAIRS)
    run = load(job.folder, max_length=LONGEST)
    found = run.logits([pair.src for pair in pairs], [pair.tgt for pair in pairs])
    counted = np.zeros((FARTHEST + 1, 2), int)
    for pair, forced in zip(pairs, found, strict=True):
        right_L = forced.logits_LV.argmax(1) == forced.ids_L
        words_L = subword_words(forced.subwords, pair.tgt_words)
        for word, jump in enumerate(jumps(pair.alignment, len(pair.tgt_words))):
            own_L = words_L == word
            if jump is not None and own_L.any():
                counted[min(jump, FARTHEST)] += (1, right_L[own_L].all())
    return {"words and right ones": counted.tolist()}


def accuracy(counted: ByJump, jumps_of: Sequence[int]) -> float | None:
    """Accuracy in percent of the words with these jumps; None: there are none."""
    words, right = (sum(counted[jump][n] for jump in jumps_of) for n in (0, 1))
    return 100 * right / words if words else None


def excess_losses(found: Found, window: int, layers: int) -> list[float]:
    """How much more accuracy words out of reach lose than those within, for each seed."""
    far = range(reach(window, layers) + 1, FARTHEST + 1)
    near = range(1, min(reach(window, layers), FARTHEST) + 1)
    excess = []
    for own, whole in side_by_side(found, name_of(window, layers), name_of(None, layers)):
        values = [accuracy(of, jumps_of) for jumps_of in (far, near) for of in (whole, own)]
        if None not in values:
            far_whole, far_own, near_whole, near_own = (float(value or 0) for value in values)
            excess.append((far_whole - far_own) - (near_whole - near_own))
    return excess


# The cost of a step --------------------------------------------------------------------------


def cost_of_step() -> Evidence:
    """Processor seconds and memory of a step, forward and backward, by length and window."""
    return {
        str(length): {
            "whole sentence" if window is None else f"window {window}": _cost(length, window)
            for window in (None, MEASURED)
        }
        for length in LENGTHS
    }


def _cost(length: int, window: int | None) -> Evidence:
    """Of the model with 2 + 2 layers and a target of 64 subwords, one pair."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.config.files import load_config
    from transformer_jax.model.encoder_decoder import make_model
    from transformer_jax.model.parameters import init_params
    from transformer_jax.text.batches import Packed

    settings: dict[str, Any] = {"model.window": window}
    config = load_config("configs/demo.py", settings)
    model = make_model(config.model, config.vocabulary.size)
    params = init_params(model, jax.random.key(0))

    def packed(positions: int) -> Packed:
        place_BL = jnp.arange(positions, dtype=jnp.int32)[None]
        return Packed(place_BL % 100 + 4, jnp.ones_like(place_BL), place_BL)

    def total(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, packed(length), packed(64))
        return jnp.square(jnp.asarray(logits)).mean()

    step = jax.jit(jax.grad(total)).lower(params).compile()
    jax.block_until_ready(step(params))
    times = []
    for _ in range(3):
        start = time.process_time()
        jax.block_until_ready(step(params))
        times.append(time.process_time() - start)
    memory = step.memory_analysis()
    return {"seconds": min(times), "bytes": int(getattr(memory, "temp_size_in_bytes", 0))}


# Findings ------------------------------------------------------------------------------------


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """Accuracy by jump, the verdicts, and the cost of a step."""
    cost = answers(folder, {COST: ([], cost_of_step)})[COST]
    found = of_jobs(folder, jobs, accuracy_by_jump)
    counted = {key: one["words and right ones"] for key, one in found.items()}
    lines = read_results(folder)
    rows, verdicts = [], []
    for layers in LAYERS:
        for window in WINDOWS:
            name = name_of(window, layers)
            own = of_seeds(counted, name).values()
            shares = ([accuracy(of, jump) for of in own] for jump in SHOWN.values())
            cells = [mean_text(values, ".1f") for values in shares]
            bleu = text_of(of_row(lines, name, "bleu"), ".1f")
            across = "" if window is None else str(reach(window, layers))
            rows.append([name, across, bleu, *cells])
            if window is not None and reach(window, layers) < FARTHEST:
                excess = excess_losses(counted, window, layers)
                verdicts.append([name, across, NEEDS_REACH(excess), mean_text(excess, "+.1f")])
    cost_rows = []
    for length, of_length in cost.items():
        seconds = [f"{1_000 * own['seconds']:.0f}" for own in of_length.values()]
        memory = [f"{own['bytes'] / 2**20:.0f}" for own in of_length.values()]
        cost_rows.append([length, *seconds, *memory])
    return [
        Heading("Verdicts: a word needs to be within reach"),
        Table(["row", "reach", "verdict", "points lost more out of reach"], verdicts),
        Heading("Accuracy of target words by their jump, percent"),
        Table(["row", "reach", "BLEU", *SHOWN], rows),
        Heading("Cost of a training step of one pair"),
        Table(COST_HEAD, cost_rows),
    ]


EXPERIMENT = Experiment(
    "windows", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=("data",)
)

if __name__ == "__main__":
    main(EXPERIMENT)
