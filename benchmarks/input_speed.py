"""Speed of the input pipeline, from text to batches, and how full the training rows are.

    python benchmarks/input_speed.py --data=FOLDER/multi30k --size=8000 --row-length=128

FOLDER/multi30k has train.en and train.de, .gz or plain. The script prints a Markdown table; the
figures in docs/speed.md are from two cores. --pairs=N also packs N generated pairs of log-normal
lengths (WMT 2014 en-de has 4.5 million pairs).
"""

import itertools
import sys
import tempfile
import time
from typing import Any

import numpy as np
from peers.process import memory_mib
from turns import markdown
from workload import wmt_lengths

from transformer_jax.config.data import DataConfig
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.text.batches import Batch, TrainSource, rows_per_batch, train_batches
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.encoded import EncodedPairs, encode_corpus
from transformer_jax.text.packing import RowPlan, plan_rows, source_row_length
from transformer_jax.text.vocabulary_training import train_vocabulary
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

FLAGS = (
    Flag("data", str, "FOLDER", "has train.SRC and train.TGT", required=True),
    Flag("src", str, "NAME", "the source's language", default="en"),
    Flag("tgt", str, "NAME", "the target's language", default="de"),
    Flag("size", int, "N", "size of the vocabulary", default=8_000),
    Flag("row-length", int, "N", "target positions of a row", default=128),
    Flag("tokens-per-batch", int, "N", "target tokens of a batch", default=25_000),
    Flag("workers", int, "N", "also measure N processes", default=0),
    Flag("pairs", int, "N", "also pack N generated pairs", default=0),
)
BATCHES = 300


def main() -> None:
    """Measures each stage once, in the order of a run."""
    values = parse_experiment("input_speed", __doc__, FLAGS, takes_keys=False)
    row_length = values["row-length"]
    corpus = open_corpus(DataConfig(path=values["data"], src=values["src"], tgt=values["tgt"]))
    pairs = corpus.split("train")
    started = time.perf_counter()
    lines = itertools.chain.from_iterable(pairs)
    vocabulary = train_vocabulary(lines, VocabularyConfig(size=values["size"]), seed=0)
    table = [("vocabulary", f"{vocabulary.size:,} pieces in {_since(started):.1f} s")]
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        encoded = encode_corpus(pairs, vocabulary, cache, corpus.fingerprint("train"))
        tokens = len(encoded.src_ids) + len(encoded.tgt_ids)
        rate = tokens / _since(started)
        table.append(("encoding, text to cache", f"{rate:,.0f} tokens/s, both sides"))
        started = time.perf_counter()
        encode_corpus(pairs, vocabulary, cache, corpus.fingerprint("train"))
        table.append(("opening the cache", f"{_since(started) * 1e3:.0f} ms"))
        plan, rows = _planned(encoded.src_lengths(), encoded.tgt_lengths(), row_length)
        table += rows
        table += _batch_rates(encoded, plan, values)
    if values["pairs"]:
        _, rows = _planned(*wmt_lengths(values["pairs"], longest=256), 256)
        table += rows
    table.append(("peak memory of the process", f"{memory_mib() / 1024:.2f} GiB"))
    print(markdown(["stage", "measured"], table))


def _since(started: float) -> float:
    return time.perf_counter() - started


def _planned(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, row_length: int
) -> tuple[RowPlan, list[tuple[str, str]]]:
    """Packs pairs of these lengths [pairs]; returns the plan and its lines of the table."""
    started = time.perf_counter()
    src_row_length = source_row_length(src_lengths, tgt_lengths, row_length)
    plan = plan_rows(src_lengths, tgt_lengths, src_row_length, row_length, seed=0)
    seconds = _since(started)
    real = (plan.src_tokens + plan.tgt_tokens) / (len(plan) * (src_row_length + row_length))
    fill = f"{plan.src_fill:.2%} source, {plan.tgt_fill:.2%} target, {real:.2%} both"
    shape = f"{len(plan):,} rows of {src_row_length} + {row_length}"
    return plan, [
        (f"packing {len(plan.pair_order):,} pairs into {shape}", f"{seconds:.2f} s"),
        ("real tokens in the rows", fill),
    ]


def _batch_rates(
    encoded: EncodedPairs, plan: RowPlan, values: dict[str, Any]
) -> list[tuple[str, str]]:
    """Lines of the table: tokens per second of the iterator, with a thread and with processes."""
    rows = rows_per_batch(values["tokens-per-batch"], values["row-length"], plan.tgt_fill, 8)
    lines = []
    for workers in sorted({0, values["workers"]}):
        batches = train_batches(TrainSource(encoded, plan, rows, seed=0), num_workers=workers)
        for _ in range(5):  # until all workers run
            next(batches)
        started = time.perf_counter()
        tokens = sum(_real_tokens(next(batches)) for _ in range(BATCHES))
        rate = tokens / _since(started)
        batches.close()
        maker = f"{workers} processes" if workers else "a thread"
        lines.append((f"batches of {rows} rows by {maker}", f"{rate:,.0f} tokens/s, both sides"))
    return lines


def _real_tokens(batch: Batch) -> int:
    return np.count_nonzero(batch.src.segments) + np.count_nonzero(batch.tgt.segments)


if __name__ == "__main__":
    sys.exit(exit_status(main))
