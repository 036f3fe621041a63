"""Writes the built-in corpus: `python -m grammar --out=FOLDER` (see the package's docstring)."""

import argparse
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

from grammar.order import moves_a_verb
from grammar.pairs import generate
from transformer_jax.errors import ConfigError
from transformer_jax.files import make_folder
from transformer_jax.text.built_in_corpus import PAIRS
from transformer_jax.use.command_line import exit_status


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes each split with its words, links and whether a verb moves; or as text with links."""
    parser = argparse.ArgumentParser(prog="grammar", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", action="store_true", help="SPLIT.en, SPLIT.de and SPLIT.align")
    for split, number in PAIRS.items():
        parser.add_argument(f"--{split}", type=int, default=number)
    asked = parser.parse_args(arguments)
    if wrong := next((split for split in PAIRS if getattr(asked, split) < 0), None):
        raise ConfigError(f"--{wrong}={getattr(asked, wrong)} is below 0.")
    make_folder("--out", asked.out)
    if any(asked.out.iterdir()):
        raise ConfigError(f"--out={asked.out} is not empty. Name a new folder.")
    for split in PAIRS:
        pairs = generate(split, getattr(asked, split), asked.seed)
        words = [(" ".join(pair.src_words), " ".join(pair.tgt_words)) for pair in pairs]
        links = [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs]
        if asked.text:
            sides = [[pair[side] for pair in words] for side in (0, 1)]
            for suffix, lines in zip(("en", "de", "align"), (*sides, links), strict=True):
                text = "".join(f"{line}\n" for line in lines)
                (asked.out / f"{split}.{suffix}").write_text(text, encoding="utf-8")
            continue
        moves = [moves_a_verb(pair.src_words, pair.tgt_words, pair.alignment) for pair in pairs]
        columns = zip(*zip(*words, strict=True), links, [f"{one:d}" for one in moves], strict=True)
        text = "".join("\t".join(line) + "\n" for line in columns)
        packed = gzip.compress(text.encode(), 9, mtime=0)
        (asked.out / f"built_in_{split}.tsv.gz").write_bytes(packed)


if __name__ == "__main__":
    sys.exit(exit_status(main))
