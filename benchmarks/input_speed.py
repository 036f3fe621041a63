"""Speed of the input pipeline, from text to batches, and how full the training rows are.

    python benchmarks/input_speed.py --data=FOLDER/multi30k --size=8000 --row-length=128

FOLDER/multi30k has train.en and train.de, .gz or plain. The script prints a Markdown table; the
figures in docs/results.md are from two cores. --pairs=N also packs N generated pairs of log-normal
lengths (WMT 2014 en-de has 4.5 million pairs).
"""

import argparse
import itertools
import resource
import tempfile
import time

import numpy as np

from transformer_jax.config.data import DataConfig, VocabularyConfig
from transformer_jax.text.batches import Batch, rows_per_batch, train_batches
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.encoded import EncodedPairs, encode_corpus
from transformer_jax.text.packing import RowPlan, plan_rows, source_row_length
from transformer_jax.text.vocabulary_training import train_vocabulary

BATCHES = 300


def main() -> None:
    """Measures each stage once, in the order of a run."""
    options = _options()
    corpus = open_corpus(DataConfig(path=options.data, src=options.src, tgt=options.tgt))
    pairs = corpus.split("train")
    started = time.perf_counter()
    lines = itertools.chain.from_iterable(pairs)
    vocabulary = train_vocabulary(lines, VocabularyConfig(size=options.size), seed=0)
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
        src_lengths = encoded.src_lengths()
        tgt_lengths = encoded.tgt_lengths()
        plan, rows = _planned(src_lengths, tgt_lengths, options.row_length)
        table += rows
        table += _batch_rates(encoded, plan, options)
    if options.pairs:
        _, rows = _planned(*_lognormal_lengths(options.pairs), 256)
        table += rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table.append(("peak memory of the process", f"{peak:.2f} GiB"))
    print("| stage | measured |\n|---|---|")
    for stage, measured in table:
        print(f"| {stage} | {measured} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of train.SRC and train.TGT")
    parser.add_argument("--src", default="en")
    parser.add_argument("--tgt", default="de")
    parser.add_argument("--size", type=int, default=8_000, help="size of the vocabulary")
    parser.add_argument("--row-length", type=int, default=128)
    parser.add_argument("--tokens-per-batch", type=int, default=25_000)
    parser.add_argument("--workers", type=int, default=0, help="also measure N processes")
    parser.add_argument("--pairs", type=int, default=0, help="also pack N generated pairs")
    return parser.parse_args()


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
    encoded: EncodedPairs, plan: RowPlan, options: argparse.Namespace
) -> list[tuple[str, str]]:
    """Lines of the table: tokens per second of the iterator, with a thread and with processes."""
    rows = rows_per_batch(options.tokens_per_batch, options.row_length, plan.tgt_fill, 8)
    lines = []
    for workers in sorted({0, options.workers}):
        batches = train_batches(encoded, plan, rows, seed=0, num_workers=workers)
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


def _lognormal_lengths(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of WMT, mean 28: [pairs] each."""
    draw = np.random.default_rng(0)
    src = draw.lognormal(np.log(28) - 0.18, 0.6, pairs)
    tgt = src * draw.lognormal(0, 0.25, pairs)
    return np.clip(src.round(), 2, 256).astype(int), np.clip(tgt.round(), 2, 256).astype(int)


if __name__ == "__main__":
    main()
