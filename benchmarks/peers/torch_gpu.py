"""PyTorch's peers on a GPU, as a process of gpu_speed.py: `torch_gpu.py TASK JOB.json SECONDS`.

    "torch base compiled", "torch big eager": torch.nn.Transformer trains, under autocast; compiled
        whole, or layer by layer ("layers": a fraction of the time to compile), or not at all
    "search marian": MarianMT of transformers searches, in bfloat16

torch.nn.Transformer is that of torch_training.py: scaled_dot_product_attention, fused Adam, float32
parameters and bfloat16 products, logits of real positions alone. Batches hold sentences of similar
lengths and are on the device beforehand, as ours are. They have many shapes, so a program is
compiled for any shape (dynamic=True), and every batch has a source mask: one program, not two.
Needs torch, and transformers for the search.
"""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from process import speeds
from torch import Tensor
from torch_training import (
    PAD,
    Batch,
    TorchTransformer,
    bucketed,
    collate,
    losses,
    make_optimizer,
    marian_config,
)

from benchmarks.turns import Figures, print_figures, timed
from benchmarks.workload import newstest_sentences, wmt_pairs
from transformer_jax.text.vocabulary import BOS, EOS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CORPUS_TIMES = 20  # pairs to choose from, times those that are used
SEARCHES = 3


def peak_gib() -> float | None:
    """Peak memory of the device that tensors used."""
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else None


def device_batches(job: dict[str, Any], config: dict[str, Any]) -> list[Batch]:
    """As many batches of the corpus as ours has steps, chosen at random, on the device."""
    tokens, longest = config["train"]["tokens_per_batch"], config["data"]["max_length"]
    pairs = wmt_pairs(CORPUS_TIMES * job["steps"] * tokens, longest, job["vocabulary_size"])
    found = []
    shuffled = bucketed(pairs, tokens, longest, 0)
    for rows in shuffled[: job["steps"]]:
        batch = collate(pairs, rows)
        padding = torch.zeros(batch.src.shape, dtype=torch.bool)
        padding = padding if batch.src_padding is None else batch.src_padding
        # Indices, not booleans: their number is known, so the host need not wait for the device.
        real: Any = tuple(part.to(DEVICE) for part in batch.real.nonzero(as_tuple=True))
        tensors = (part.to(DEVICE) for part in (batch.src, padding, batch.tgt_input))
        found.append(Batch(*tensors, real, batch.labels.to(DEVICE), batch.src_tokens))
    # A first batch with equal lengths would be compiled for equal lengths.
    return sorted(found, key=lambda batch: batch.src.shape[1] == batch.tgt_input.shape[1])


def forward_of(layer: torch.nn.Module, *arguments: Any, **options: Any) -> Tensor:
    """One program for all layers of a kind; `layer.compile()` does nothing for PyTorch's own."""
    return type(layer).forward(layer, *arguments, **options)


def make_step(
    config: dict[str, Any], vocabulary_size: int, how: str
) -> tuple[torch.nn.Module, Callable[[Batch], Tensor]]:
    """The model, and a function that updates it and returns nats per token."""
    torch.manual_seed(0)
    # One more than the longest sentence: using the whole causal mask would compile another program
    # than using a part of it.
    train = config["train"]
    longest = config["data"]["max_length"] + 1
    model = TorchTransformer(config["model"], vocabulary_size, longest).to(DEVICE).train()
    model.causal = model.causal.to(DEVICE)
    optimizer, schedule = make_optimizer(model, config)
    loss_of_logits: Any = torch.compile(losses, dynamic=True) if how == "layers" else losses

    def loss_of(batch: Batch) -> tuple[Tensor, Tensor]:
        return loss_of_logits(model(batch), batch.labels, train["label_smoothing"])

    if how == "compiled":
        loss_of = torch.compile(loss_of, dynamic=True)
    elif how == "layers":
        forward = torch.compile(forward_of, dynamic=True)
        for layer in (*model.transformer.encoder.layers, *model.transformer.decoder.layers):
            layer.forward = functools.partial(forward, layer)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss, nats = loss_of(batch)
        loss.backward()
        optimizer.step()
        schedule.step()
        return nats

    return model, step


def train(job: dict[str, Any], size: str, how: str) -> Figures:
    """Times complete steps over all batches; the first pass compiles."""
    config = job["configs"][size]
    batches = device_batches(job, config)
    model, step = make_step(config, job["vocabulary_size"], how)
    nats: list[Tensor] = []

    def run() -> None:
        nats[:] = [step(batch) for batch in batches]
        if DEVICE.type == "cuda":  # until the work that was started has ended
            torch.cuda.synchronize()

    first = timed(run)
    seconds = [timed(run) for _ in range(job["blocks"])]
    second = statistics.median(seconds)
    each = zip(nats, batches, strict=True)
    src = sum(batch.src_tokens for batch in batches)
    tgt = sum(len(batch.labels) for batch in batches)
    slots = sum(batch.src.numel() + batch.tgt_input.numel() for batch in batches)
    return speeds(src, tgt, slots, len(batches), second) | {
        "ms_of_each_pass": [1e3 * s / len(batches) for s in seconds],
        "peak_gib": peak_gib(),
        "compile_s": None if how == "eager" else first - second,
        "nats_per_token": sum(float(x) * len(batch.labels) for x, batch in each) / tgt,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


# Search ---------------------------------------------------------------------------------------


class EndsAt:
    """Translations have as many subwords as their sources, as ours have: EOS there, not before."""

    def __init__(self, lengths: Tensor, beams: int):
        self.limits = lengths.repeat_interleave(beams)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # input_ids has BOS too: the next subword is number input_ids.shape[1].
        ends = (self.limits == input_ids.shape[1])[:, None]
        eos = (torch.arange(scores.shape[1], device=scores.device) == EOS)[None]
        return scores.masked_fill(ends != eos, -torch.inf)


def translate(model: Any, sentences: list[np.ndarray], rows: int, beams: int) -> int:
    """Searches sentences of similar lengths together; returns the subwords, EOS included."""
    order = sorted(sentences, key=len, reverse=True)
    found = 0
    for start in range(0, len(order), rows):
        parts = [torch.from_numpy(ids).long() for ids in order[start : start + rows]]
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(part) for part in parts], device=DEVICE)
        mask = (torch.arange(ids.shape[1], device=DEVICE) < lengths[:, None]).long()
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids.to(DEVICE),
                attention_mask=mask,
                max_new_tokens=ids.shape[1],
                num_beams=beams,
                do_sample=False,
                logits_processor=[EndsAt(lengths, beams)],
            )
        ended = out[:, 1:].cpu() == EOS
        found += int((ended.int().argmax(1) + 1)[ended.any(1)].sum())
    return found


def search(job: dict[str, Any]) -> Figures:
    """Times beam search ("beam") and greedy search of the base model, with random weights."""
    from transformers import MarianMTModel

    config = job["configs"]["base"]
    size = job["vocabulary_size"]
    ends = {"eos_token_id": EOS, "bos_token_id": BOS, "forced_eos_token_id": None}
    settings = marian_config(config["model"], size, max_length=512, **ends)
    model = MarianMTModel(settings).to(DEVICE, torch.bfloat16).eval()
    sentences = newstest_sentences(job["sentences"], config["decode"]["max_length"], size)
    rows = job["marian_rows"]
    beams = {"beam": config["decode"]["beam_size"], "greedy": 1}
    figures = {mode: timed_search(model, sentences, rows, n) for mode, n in beams.items()}
    return figures | {"peak_gib": peak_gib()}


def timed_search(model: Any, sentences: list[np.ndarray], rows: int, beams: int) -> Figures:
    """Times passes over all sentences, after a search of the batch of the longest ones."""
    longest = sorted(sentences, key=len)[-rows:]
    output = list[int]()
    warm_up = timed(lambda: translate(model, longest, rows, beams))
    second = timed(lambda: output.append(translate(model, sentences, rows, beams)), SEARCHES)
    rates = {"tokens_per_s": output[-1] / second, "sentences_per_s": len(sentences) / second}
    return rates | {"output_tokens": output[-1], "compile_s": warm_up, "beam": beams}


def measure(task: str, job: dict[str, Any]) -> Figures:
    """The figures of one task."""
    kind, *rest = task.split()
    figures = search(job) if kind == "search" else train(job, *rest)
    return figures | {"torch": torch.__version__}


if __name__ == "__main__":
    print_figures(measure)
