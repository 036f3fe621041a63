"""Beam search over an exported model, without the code that trained it.

    python search.py < source.txt > translation.txt

It needs jax, numpy and sentencepiece, and the other files of its folder; for a model whose text is
normalized by Moses' rules, sacremoses too. The score of a translation is the sum of its log
probabilities; there is no length penalty.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from sentencepiece import SentencePieceProcessor

SPACE = "\u2581"  # SentencePiece's sign for a space; in text it is read as one
LANGUAGE = re.compile(r"\s*(>>[^<\s]*<<)")  # a language code, which may begin a source line


class ExportedModel:
    """The functions of a folder, its weights, and what turns text into subwords and back."""

    cut = 0  # lines that were too long

    def __init__(self, folder: Path):
        self.signature = json.loads((folder / "signature.json").read_text(encoding="utf-8"))
        with np.load(folder / "weights.npz") as file:
            self.weights = [file[name] for name in self.signature["weights"]]
        self.encode, self.step, prepare = (
            jax.jit(export.deserialize(bytearray((folder / f"{name}.jax").read_bytes())).call)
            for name in ("encode", "step", "prepare")
        )
        self.prepared = prepare(self.weights)
        self.source, self.target = (
            SentencePieceProcessor(str(folder / f"{side}.spm")) for side in ("source", "target")
        )
        self.pieces = self.signature["pieces"]
        # Of equal pieces the first one counts.
        self.ids = {piece: i for i, piece in reversed([*enumerate(self.pieces["source"])])}
        self.normalize = normalizer(self.signature["punctuation"])

    def translate(self, line: str) -> str:
        """The best translation of a line; empty for a blank line."""
        pieces = self.subwords(line.strip())
        if not pieces:
            return ""
        found = self.search([i for piece in pieces for i in self.ids_of(piece)])
        text = str(self.target.decode([self.pieces["target"][i] for i in found]))
        if SPACE in text:  # a piece that the target's SentencePiece model lacks
            text = text.replace(SPACE, " ").strip()
        return text.replace("\n", " ").replace("\r", " ")  # byte pieces can spell line ends

    def subwords(self, line: str) -> list[str]:
        """The pieces of a line; language codes such as >>deu<< are one piece each."""
        codes = list[str]()
        while self.signature["language_codes"] and (found := LANGUAGE.match(line)):
            unknown = found[1] not in self.ids
            if unknown and (codes or not self.signature.get("unknown_codes", True)):
                break
            codes.append(found[1])
            line = line[found.end() :]
            if unknown:
                break
        targets = self.signature.get("targets", [])  # a folder of an older version has none
        other = LANGUAGE.match(line) if self.signature["language_codes"] else None
        if other and not self.signature.get("unknown_codes", True):
            raise ValueError(f"it has the code {other[1]}, which this model does not know.")
        if len(into := {*codes} & {*targets}) > 1:
            raise ValueError(f"it names several targets: {', '.join(sorted(into))}.")
        codes.sort(key=lambda one: one not in targets)  # the target's first, as in training
        to = self.signature.get("to")
        if (targets or to) and line.strip() and not {*codes} & {*(targets or codes)}:
            if to:
                return self.subwords(f"{to} {' '.join([*codes, line.strip()])}")
            raise ValueError(f"begin it with its target language: {', '.join(targets)}.")
        text = self.normalize(line).replace(SPACE, " ")
        pieces: list[str] = self.source.encode(text, out_type=str)
        return [*codes, *pieces] if pieces else []

    def ids_of(self, piece: str) -> list[int]:
        """The id of a piece. Several unknown words are one piece, and unknown each."""
        unknown = self.ids.get("<unk>", 0)
        return [self.ids[piece]] if piece in self.ids else [unknown] * max(1, piece.count(SPACE))

    def search(self, ids: Sequence[int]) -> list[int]:
        """The best hypothesis's subwords, without EOS.

        Args:
          ids: the source's subwords, without EOS.
        """
        sizes, special = self.signature["sizes"], self.signature["special"]
        self.cut += len(ids) >= sizes["source"]
        beams, longest = sizes["beams"], sizes["target"]
        ids = [*ids[: sizes["source"] - 1], special["eos"]]
        limit = min(longest, len(ids) + self.signature["max_extra_length"])
        padded = np.zeros((1, sizes["source"]), np.int32)
        padded[0, : len(ids)] = ids
        memory = self.encode(self.weights, padded, np.array([len(ids)], np.int32))
        cache: list[Any] = [np.zeros((1, *x["shape"]), x["dtype"]) for x in self.signature["cache"]]
        newest = np.full((1, beams), special["bos"], np.int32)
        ancestors = np.zeros((1, beams, longest), np.int32)
        sums = np.array([0.0, *[-np.inf] * (beams - 1)])  # one live hypothesis at first
        live: list[list[int]] = [[] for _ in range(beams)]
        best = list[int]()
        best_sum = -np.inf
        for position in range(limit):
            # The newest subword of each hypothesis is at its own beam slot.
            ancestors[0, :, position] = np.arange(beams)
            now = np.array([position], np.int32), newest, ancestors
            logits, cache = self.step(self.weights, self.prepared, memory, cache, *now)
            totals = sums[:, None] + log_softmax(np.asarray(logits[0], np.float64))
            allowed = totals.copy()
            allowed[:, special["banned"]] = -np.inf
            if position == limit - 1:  # only EOS may follow
                ends = allowed[:, special["eos"]].copy()
                allowed[:] = -np.inf
                allowed[:, special["eos"]] = ends
            order = np.argsort(-allowed, axis=None, kind="stable")[: 2 * beams]
            ranked = [divmod(int(index), allowed.shape[1]) for index in order]
            for slot, subword in ranked[:beams]:
                if subword == special["eos"] and allowed[slot, subword] > best_sum:
                    best = live[slot]
                    best_sum = allowed[slot, subword]
            going = [pair for pair in ranked if pair[1] != special["eos"]][:beams]
            sums = np.array([allowed[pair] for pair in going])
            if not np.isfinite(sums).any() or sums.max() <= best_sum:  # sums only fall
                break
            parents = np.array([slot for slot, _ in going])
            live = [[*live[slot], subword] for slot, subword in going]
            newest = np.array([[subword for _, subword in going]], np.int32)
            ancestors = ancestors[:, parents]
            for n in self.signature["carried"]:
                cache[n] = np.asarray(cache[n])[:, parents]
        return best


def normalizer(language: str) -> Callable[[str], str]:
    """Moses' rules of punctuation for this language; "": the text stays as it is."""
    if not language:
        return str
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(language, pre_replace_unicode_punct=True).normalize


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The logarithms of the probabilities of the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def main() -> None:
    """Translates standard input."""
    model = ExportedModel(Path(__file__).parent)
    if sys.stdin is None:
        sys.exit("search.py: standard input is closed. Use search.py < TEXT > TRANSLATION.")
    # Only "\n" ends a line; a byte order mark is not text.
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            print(model.translate(line.decode("utf-8-sig" if number == 1 else "utf-8")), flush=True)
        except ValueError as error:  # the bytes are not UTF-8, or a target language is missing
            sys.exit(f"search.py: line {number}: {error}")
    if model.cut:
        print(f"search.py: {model.cut} lines were cut to the longest source", file=sys.stderr)


if __name__ == "__main__":
    main()
