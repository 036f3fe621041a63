"""Trains SentencePiece models: the vocabulary of a run, or one for each side."""

import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sentencepiece

from transformer_jax.config.schema import KEYS
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.bundle import Bundle, packed
from transformer_jax.text.vocabulary import BOS, EOS, PAD, UNK, TableVocabulary, Vocabulary, as_utf8

# The model file stores this number, so it must not depend on the machine.
TRAINER_THREADS = 16
LINE_CHARACTERS = 1_000  # at most 4,000 bytes: the trainer silently skips lines over 4,192 bytes
RESERVED = "\u2585"  # the trainer's own; it silently skips lines that have it
# The rarest characters, together at most 0.01 % of the text, are spelled in bytes. They share the
# byte pieces, so these are trained better than a piece for a character that occurs twice.
CHARACTER_COVERAGE = 0.9999
KINDS = KEYS["vocabulary.kind"].choices
NORMALIZATIONS = KEYS["vocabulary.normalization"].choices


def train_vocabularies(
    sources: Iterable[str],
    targets: Iterable[str],
    config: VocabularyConfig,
    seed: int,
    codes: Sequence[str] = (),
) -> TableVocabulary:
    """Trains a model of config.size pieces for each side; see `train_vocabulary`.

    The source's has the codes.
    """
    own = [
        train_vocabulary(lines, config, seed, own_codes)
        for lines, own_codes in ((sources, codes), (targets, ()))
    ]
    tables = [tuple(one.pieces(range(one.size))) for one in own]
    bundle = Bundle(own[0].model, own[1].model, tables[0], ("", ""), target_pieces=tables[1])
    return TableVocabulary(packed(bundle), "the trained vocabularies")


def train_vocabulary(
    lines: Iterable[str], config: VocabularyConfig, seed: int, codes: Sequence[str] = ()
) -> Vocabulary:
    """Trains one SentencePiece model.

    The same lines, config and seed give the same bytes.

    Args:
      lines: both sides of the training split, or one side with vocabulary.separate; read once. If
        there are more than config.max_lines, a random sample is used.
      config: size, kind, normalization and max_lines; the other keys are not used here.
      seed: seed of the sample.
      codes: control pieces that source lines may begin with, such as ">>de<<".

    Raises:
      ConfigError: a key has an invalid value, or the text does not support the size.
      DataError: there is no text.
    """
    if config.kind not in KINDS:
        raise ConfigError(f"vocabulary.kind={config.kind!r} is not one of {', '.join(KINDS)}.")
    if config.normalization not in NORMALIZATIONS:
        allowed = ", ".join(NORMALIZATIONS)
        raise ConfigError(
            f"vocabulary.normalization={config.normalization!r} is not one of {allowed}."
        )
    try:
        model = _trained(
            _trainer_lines(_sample(lines, config.max_lines, seed)),
            vocab_size=config.size,
            model_type=config.kind,
            normalization_rule_name=config.normalization,
            character_coverage=CHARACTER_COVERAGE,
            byte_fallback=True,
            pad_id=PAD,
            eos_id=EOS,
            bos_id=BOS,
            unk_id=UNK,
            pad_piece="<pad>",
            control_symbols=list(codes),
            num_threads=TRAINER_THREADS,
        )
    except (RuntimeError, OSError) as error:
        raise _training_error(str(error), config) from None
    return Vocabulary(model, "the trained vocabulary")


def word_splitter(words: Iterable[str]) -> bytes:
    """A SentencePiece model that only splits a line at spaces; its pieces are the words."""
    known = [word for word in words if word and " " not in word]
    return _trained(
        iter(known),
        vocab_size=len(known) + 3,  # its unknown piece, BOS and EOS
        model_type="word",
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        character_coverage=1.0,
    )


def _trained(lines: Iterator[bytes] | Iterator[str], **options: Any) -> bytes:
    """The bytes of a SentencePiece model, with the trainer's options."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=written, minloglevel=3, **options
    )
    return written.getvalue()


def _sample(lines: Iterable[str], count: int, seed: int) -> list[str]:
    """At most `count` of the lines, each equally likely (reservoir sampling, Vitter 1985)."""
    kept: list[str] = []
    # random() is the only method whose stream Python promises never to change.
    draw = random.Random(seed).random
    for seen, line in enumerate(lines):
        if seen < count:
            kept.append(line)
        elif (slot := int(draw() * (seen + 1))) < count:
            kept[slot] = line
    return kept


def _trainer_lines(lines: Iterable[str]) -> Iterator[bytes]:
    for line in lines:
        for start in range(0, len(line), LINE_CHARACTERS):
            yield as_utf8(line[start : start + LINE_CHARACTERS].replace(RESERVED, " "))


def _training_error(message: str, config: VocabularyConfig) -> ConfigError | DataError:
    if found := re.search(r"Vocabulary size too high .* value <= (\d+)", message):
        return ConfigError(
            f"vocabulary.size={config.size} is more than the training text supports: "
            f"set vocabulary.size to {found[1]} or less, or give more text"
            f"{' (vocabulary.max_lines)' if config.max_lines else ''}."
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return ConfigError(
            f"vocabulary.size={config.size} is too small for the 256 bytes, the 4 control pieces "
            f"and the characters of the training text: set vocabulary.size to {found[1]} or more."
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError(
            "The training split has no text to make a vocabulary of: check data.path, and weights "
            "in data.train."
        )
    return ConfigError(f"vocabulary.size={config.size}: SentencePiece cannot train: {message}")
