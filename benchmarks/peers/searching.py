"""One engine's searches, timed, as a process: `searching.py ENGINE JOB.json OUT.json OPTIONS`.

The time is from encoded subwords to subwords: batches are sorted, padded, encoded, searched and
read back. Loading, compilation and a first pass over the same sentences are not timed. An encoded
sentence has the form that the engine takes: arrays for ours, lists of ids for transformers, lists
of strings for CTranslate2. All engines rank hypotheses by plain sums of log probabilities, except
ours with a penalty.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Ids = list[list[int]]
MODES = ("greedy", "beam")


class Job(NamedTuple):
    """The task of all engines, which a JSON file holds."""

    folder: str  # of transformers/ and ctranslate2/, as `export` writes them
    workdir: str  # ours
    checkpoint: str
    sources: Ids  # EOS included
    pieces: tuple[list[str], list[str]]  # of source and target, by id
    norm_epsilon: float  # of layer normalization
    special: dict[str, int]  # transformers' names of the ids of padding, EOS and BOS
    beam_size: int
    max_tokens: int  # of an output, EOS included; ours has a limit for each sentence
    threads: int
    tried: int  # sentences on which options are tried


# Searches all sentences, and returns its seconds and the ids; they end in EOS, except those that a
# limit cut.
Search = Callable[[], tuple[float, Ids]]


def ours(job: Job, beam_size: int, options: dict[str, Any]) -> Search:
    """Translator.translate with the run's config; options: length_penalty (alpha), keys."""
    from transformer_jax.use.loading import load_model

    alpha, keys = options["length_penalty"], options["keys"]
    loaded = load_model(job.workdir, job.checkpoint, beam_size, alpha, overrides=keys)
    translator = loaded.translator
    sentences = [np.array(ids, np.int32) for ids in job.sources]

    def search() -> tuple[float, Ids]:
        begin = time.perf_counter()
        found = translator.translate(sentences)
        seconds = time.perf_counter() - begin
        return seconds, [best[0].ids.tolist() if best else [] for best in found]

    return search


def transformers_model(job: Job, attention: str = "sdpa") -> Any:
    """The exported model, ready to generate; attention: "sdpa" or "eager"."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    folder = str(Path(job.folder) / "transformers")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation=attention).eval()
    model.generation_config = GenerationConfig(**job.special)  # not the run's settings of search
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = job.norm_epsilon  # the config has no key for it
    return model


def transformers(job: Job, beam_size: int, options: dict[str, Any]) -> Search:
    """transformers' generate; options: batch_size, attention ("sdpa" or "eager")."""
    import torch

    torch.set_num_threads(job.threads)
    model = transformers_model(job, options["attention"])
    pad, eos = job.special["pad_token_id"], job.special["eos_token_id"]
    order = sorted(range(len(job.sources)), key=lambda i: -len(job.sources[i]))
    size = options["batch_size"]
    settings: dict[str, Any] = {"max_new_tokens": job.max_tokens, "num_beams": beam_size}
    settings["do_sample"] = False
    if beam_size > 1:  # exact with a plain sum; "never" gives the same
        settings |= {"length_penalty": 0.0, "early_stopping": False}

    def search() -> tuple[float, Ids]:
        begin = time.perf_counter()
        found: Ids = [[] for _ in order]
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            rows = [torch.tensor(job.sources[i]) for i in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = torch.tensor([len(row) for row in rows])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            with torch.inference_mode():
                out = model.generate(input_ids=ids, attention_mask=mask, **settings)
            for i, row in zip(numbers, out[:, 1:].tolist(), strict=True):
                found[i] = row[: row.index(eos) + 1] if eos in row else row
        return time.perf_counter() - begin, found

    return search


def ctranslate2(job: Job, beam_size: int, options: dict[str, Any]) -> Search:
    """translate_batch; options: compute ("float32", "int8"), batch_size, inter, intra threads."""
    from ctranslate2 import Translator

    translator = Translator(
        str(Path(job.folder) / "ctranslate2"),
        device="cpu",
        compute_type=options["compute"],
        inter_threads=options["inter"],
        intra_threads=options["intra"],
    )
    source, target = job.pieces
    sentences = [[source[i] for i in ids[:-1]] for ids in job.sources]  # the engine appends EOS
    id_of = {piece: i for i, piece in enumerate(target)}

    def search() -> tuple[float, Ids]:
        begin = time.perf_counter()
        found = translator.translate_batch(
            sentences,
            max_batch_size=options["batch_size"],
            beam_size=beam_size,
            length_penalty=0.0,
            max_input_length=0,
            max_decoding_length=job.max_tokens,
            min_decoding_length=0,  # the default, 1, would forbid EOS at the first position
            return_end_token=True,
        )
        seconds = time.perf_counter() - begin
        return seconds, [[id_of[piece] for piece in one.hypotheses[0]] for one in found]

    return search


# (job, beam size, its options) -> its search.
ENGINES: dict[str, Callable[[Job, int, dict[str, Any]], Search]] = {
    "ours": ours,
    "transformers": transformers,
    "ctranslate2": ctranslate2,
}


def speed(job: Job, engine: str, mode: str, options: dict[str, Any]) -> tuple[float, Ids]:
    """Sentences per second of the second of two passes, and the outputs."""
    search = ENGINES[engine](job, 1 if mode == "greedy" else job.beam_size, options)
    search()
    seconds, ids = search()
    return len(ids) / seconds, ids


def main() -> None:
    """ENGINE JOB.json OUT.json OPTIONS: the options to try, as JSON.

    Of more than two, the two that are fastest on the first sentences are run on all, and the faster
    one counts. Prints its options and its sentences and target subwords per second for each mode;
    writes the outputs to OUT.json.
    """
    engine, job_file, out_file, options = sys.argv[1:]
    job = Job(**json.loads(Path(job_file).read_text()))
    part = job._replace(sources=job.sources[: job.tried])
    figures = dict[str, Any]()
    found = dict[str, Ids]()
    for mode in MODES:
        tried = json.loads(options)
        if len(tried) > 2:
            trial = [speed(part, engine, mode, one)[0] for one in tried]
            tried = [tried[i] for i in np.argsort(trial)[-2:]]
        for one in tried:
            rate, ids = speed(job, engine, mode, one)
            if rate > figures.get(mode, 0.0):
                subwords = rate * sum(map(len, ids)) / len(ids)
                figures |= {mode: rate, f"{mode}_tokens": subwords, f"{mode}_options": one}
                found[mode] = ids
    Path(out_file).write_text(json.dumps(found))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
