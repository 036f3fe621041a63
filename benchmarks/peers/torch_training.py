"""Training speed of two peers in PyTorch: MarianMT and torch.nn.Transformer.

    python benchmarks/peers/torch_training.py --model=marian --task=FOLDER/task.json

`train_speed.py` writes the task (config, encoded pairs, number of steps) and reads the one line
printed here. Needs torch and transformers, and nothing of this package.

The fastest of the settings tried is used. CPU seconds of a step on one thread (Zen 4, torch 2.13,
about 3,800 tokens): logits of real positions alone 1.39, of every position with ignore_index 1.45
(1.42 and 1.58 if rows are padded); F.cross_entropy and the same formula written out, which also
gives the unsmoothed loss, are equal; by logsumexp 1.49. MarianMT's fused attention 1.42 if rows are
padded, its plain one 1.45 (1.39 and 1.36 if not). Adam fused 0.006, foreach or neither 0.018.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from process import memory_mib, seconds_since_start, speeds
from torch import Tensor, nn
from torch.nn import functional as F

PAD, BOS = 0, 2


class Batch(NamedTuple):
    """Sentences of about one length, padded to the longest."""

    src: Tensor  # int64 [rows, src_len], each sentence ending in EOS
    src_padding: Tensor | None  # bool [rows, src_len], True = padding; None: there is none
    tgt_input: Tensor  # int64 [rows, tgt_len], BOS first
    real: Tensor  # bool [rows, tgt_len]
    labels: Tensor  # int64 [real target tokens], each sentence ending in EOS
    src_tokens: int


class Pairs(NamedTuple):
    """The encoded corpus: sentence i is ids[offsets[i] : offsets[i + 1]], EOS included."""

    src_ids: np.ndarray
    src_offsets: np.ndarray
    tgt_ids: np.ndarray
    tgt_offsets: np.ndarray


def bucketed(pairs: Pairs, tokens: int, max_length: int, seed: int) -> list[np.ndarray]:
    """Pair numbers of each batch of an epoch: lengths alike, `tokens` target tokens, shuffled.

    The whole corpus is sorted, as in fairseq: by source length, then by target length, up and down
    in turns, so that a batch over two source lengths has targets alike. On Multi30k 3.0 % of the
    slots are padding and 88 % of the batches need no source mask. Tried: always up (5.6 %), target
    first (3.1 %, masks in 70 %), the longer side first (6.5 %), pools of 40 batches (9.9 %).
    """
    draw = np.random.default_rng(seed)
    src, tgt = np.diff(pairs.src_offsets), np.diff(pairs.tgt_offsets)
    kept = np.flatnonzero((np.minimum(src, tgt) > 1) & (np.maximum(src, tgt) <= max_length))
    src, tgt = src[kept], tgt[kept]
    order = np.lexsort((draw.random(len(kept)), np.where(src % 2, -tgt, tgt), src))
    ends = np.cumsum(tgt[order])
    count = max(1, round(ends[-1] / tokens))  # number of equal batches, without a small last one
    number = (ends - 1) * count // ends[-1]
    batches = np.split(kept[order], np.flatnonzero(np.diff(number)) + 1)
    return [batches[i] for i in draw.permutation(len(batches))]


def padded(ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ids, real), int64 and bool [rows, longest]."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - offsets[rows]
    column = np.arange(lengths.max())
    real = column < lengths[:, None]
    positions = np.where(real, starts[:, None] + column, 0)
    return np.where(real, ids[positions], PAD).astype(np.int64), real


def collate(pairs: Pairs, rows: np.ndarray) -> Batch:
    """The batch of these pairs."""
    src, src_real = padded(pairs.src_ids, pairs.src_offsets, rows)
    tgt, real = padded(pairs.tgt_ids, pairs.tgt_offsets, rows)
    tgt_input = np.pad(tgt, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    padding = None if src_real.all() else torch.from_numpy(~src_real)
    labels = torch.from_numpy(tgt[real])
    inputs = torch.from_numpy(src), padding, torch.from_numpy(tgt_input), torch.from_numpy(real)
    return Batch(*inputs, labels, int(src_real.sum()))


def endless(pairs: Pairs, config: dict[str, Any]) -> Iterator[Batch]:
    """Batches of epoch after epoch."""
    epoch = config["seed"]
    while True:
        tokens, longest = config["train"]["tokens_per_batch"], config["data"]["max_length"]
        for rows in bucketed(pairs, tokens, longest, epoch):
            yield collate(pairs, rows)
        epoch += 1


class TorchTransformer(nn.Module):
    """torch.nn.Transformer between one tied embedding and its transpose."""

    def __init__(self, model: dict[str, Any], vocabulary_size: int, max_length: int):
        super().__init__()
        d_model, layers = model["d_model"], model["num_layers"]
        options = {"dropout": model["dropout"], "batch_first": True}
        sizes = (d_model, model["num_heads"], model["d_ff"])
        # Built by hand, since nn.Transformer's own adds a normalization after the last layer.
        self.transformer = nn.Transformer(
            *sizes[:2],
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(*sizes, **options), layers, enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(
                nn.TransformerDecoderLayer(*sizes, **options), layers
            ),
            batch_first=True,
        )
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # none on attention's weights, so its fused kernel is used
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # none inside the feed-forward network
        self.embedding = nn.Embedding(vocabulary_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.dropout = nn.Dropout(model["dropout"])
        self.register_buffer("positions", sinusoids(max_length, d_model))
        self.causal = nn.Transformer.generate_square_subsequent_mask(max_length, dtype=torch.float)

    def embed(self, ids: Tensor) -> Tensor:
        """[rows, length, d_model]."""
        scaled = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the real target positions, [tokens, vocabulary]."""
        length = batch.tgt_input.shape[1]
        hidden = self.transformer(
            self.embed(batch.src),
            self.embed(batch.tgt_input),
            tgt_mask=self.causal[:length, :length],
            tgt_is_causal=True,  # padding is last: a causal mask hides it
            src_key_padding_mask=batch.src_padding,
            memory_key_padding_mask=batch.src_padding,
        )
        return F.linear(hidden[batch.real], self.embedding.weight)


def sinusoids(length: int, d_model: int) -> Tensor:
    """[length, d_model], sines and cosines interleaved."""
    rate = 10_000 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length)[:, None] * rate
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def marian_config(
    model: dict[str, Any], vocabulary_size: int, max_length: int, **others: Any
) -> Any:
    """The configuration of a MarianMTModel of these sizes."""
    from transformers import MarianConfig

    sides = {"layers": "num_layers", "attention_heads": "num_heads", "ffn_dim": "d_ff"}
    return MarianConfig(
        **{
            f"{side}_{theirs}": model[ours]
            for side in ("encoder", "decoder")
            for theirs, ours in sides.items()
        },
        vocab_size=vocabulary_size,
        d_model=model["d_model"],
        max_position_embeddings=max_length,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        decoder_start_token_id=BOS,
        attn_implementation="sdpa",
        **others,
    )


class Marian(nn.Module):
    """MarianMTModel of transformers, from scratch."""

    def __init__(self, model: dict[str, Any], vocabulary_size: int, max_length: int):
        super().__init__()
        from transformers import MarianMTModel

        dropouts = {"attention_dropout": 0.0, "activation_dropout": 0.0}
        dropouts["dropout"] = model["dropout"]
        config = marian_config(model, vocabulary_size, max_length, use_cache=False, **dropouts)
        self.marian = MarianMTModel(config)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the real target positions, [tokens, vocabulary]."""
        mask = None if batch.src_padding is None else (~batch.src_padding).long()
        # It gets no labels: its own loss has no smoothing and counts padded positions.
        hidden = self.marian.model(
            input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_input
        ).last_hidden_state
        return self.marian.lm_head(hidden[batch.real]) + self.marian.final_logits_bias


def losses(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """(smoothed loss, nats) per token: what F.cross_entropy(label_smoothing) computes, and both."""
    log_probs = logits.log_softmax(-1)
    nats = F.nll_loss(log_probs, labels)
    return (1 - smoothing) * nats - smoothing * log_probs.mean(), nats.detach()


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> tuple[Any, Any]:
    """Adam, and its schedule; the peak is by default that of Vaswani et al. 2017, equation 3."""
    train = config["train"]
    if train["schedule"] != "rsqrt":
        raise SystemExit(f"train.schedule={train['schedule']!r}: the peer has 'rsqrt' only.")
    warmup = train["warmup_steps"]
    peak = train["peak_learning_rate"] or (config["model"]["d_model"] * warmup) ** -0.5
    betas = (train["adam_b1"], train["adam_b2"])
    adam = torch.optim.Adam(
        model.parameters(), float(peak), betas, train["adam_epsilon"], fused=True
    )

    def share(update: int) -> float:
        """The share of the peak that update number `update`, from 0, takes."""
        return min((update + 1) / warmup, (warmup / (update + 1)) ** 0.5)

    return adam, torch.optim.lr_scheduler.LambdaLR(adam, share)


class Trainer:
    """A model, its optimizer and its batches."""

    def __init__(self, task: dict[str, Any], name: str):
        config = task["config"]
        torch.manual_seed(config["seed"])
        size = task["vocabulary_size"]
        longest = config["data"]["max_length"]
        self.train = config["train"]
        self.dtype = config["model"]["dtype"]
        self.model = {"marian": Marian, "torch": TorchTransformer}[name](
            config["model"], size, longest
        ).train()
        self.optimizer, self.schedule = make_optimizer(self.model, config)
        # The arrays that this package's `encode_corpus` wrote.
        files = (Path(task["pairs"]) / f"{field}.npy" for field in Pairs._fields)
        pairs = Pairs(*(np.load(file, mmap_mode="r") for file in files))
        self.batches = endless(pairs, config)

    def step(self) -> tuple[np.ndarray, Tensor]:
        """One update. Returns (source tokens, target tokens, slots), and nats per token."""
        batch = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
            logits = self.model(batch)
        loss, nats = losses(logits.float(), batch.labels, self.train["label_smoothing"])
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        slots = batch.src.numel() + batch.tgt_input.numel()
        return np.array([batch.src_tokens, len(batch.labels), slots]), nats


def measure(task: dict[str, Any], name: str) -> dict[str, float]:
    """The figures of the timed steps."""
    torch.set_num_threads(os.cpu_count() or 1)
    trainer = Trainer(task, name)
    trainer.step()
    first_step = seconds_since_start()
    for _ in range(task["warm_up"] - 1):
        trainer.step()
    counts = np.zeros(3, np.int64)
    nats = torch.zeros(())
    started = time.perf_counter()
    for _ in range(task["steps"]):
        of_step, nats_per_token = trainer.step()
        counts += of_step
        nats += nats_per_token * int(of_step[1])
    seconds = time.perf_counter() - started
    src, tgt, slots = map(int, counts)
    return speeds(src, tgt, slots, task["steps"], seconds) | {
        "peak_mib": memory_mib(),
        "parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "first_step_s": first_step,
        "nats_per_token": float(nats) / tgt,
    }


def main() -> None:
    """Prints the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, choices=["marian", "torch"])
    parser.add_argument("--task", required=True, help="task.json of train_speed.py")
    options = parser.parse_args()
    task = json.loads(Path(options.task).read_text())
    print(json.dumps(measure(task, options.model)))


if __name__ == "__main__":
    main()
