"""A foreign model as the parts of a run, with its vocabulary in our order.

Dimension key
  V foreign vocabulary
"""

import logging
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import sentencepiece

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config, value_at
from transformer_jax.errors import ConfigError, DataError, UserError
from transformer_jax.files import is_stream
from transformer_jax.interop.block import Weights, entries, from_block, halves_first
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.model.sides.choices import longest as longest_of
from transformer_jax.text.bundle import Bundle
from transformer_jax.text.vocabulary import BOS, EOS, PAD, SPACE, UNK, Sizes

log = logging.getLogger(__name__)

# Bias of subwords that the foreign model does not have: exp(-100) is negligible in the softmax,
# and a number such as -1e9 would dominate a loss with label smoothing.
NEVER = -100.0
LENGTHS = ("data.max_length", "train.row_length", "decode.max_length")
NEUTRAL: tuple[Any, ...] = (None, False, "", [], {})  # 0 is False
ENCODER_TABLE = "model.encoder.embed_tokens.weight"
TABLES = (
    "model.shared.weight",
    ENCODER_TABLE,
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


class Imported(NamedTuple):
    """What a run needs from a foreign model."""

    model: ModelConfig
    decode: Mapping[str, Any]  # keys of decode and their values
    bundle: Bundle
    params: Any  # as our model has them, NumPy float32


class Special(NamedTuple):
    """Foreign ids of the pieces that come first in our vocabulary; None: it has no such piece."""

    pad: int | None
    eos: int
    unk: int | None
    start: int | None  # the decoder's first input; None: a vector of zeros

    @property
    def are_ours(self) -> bool:
        """Whether the foreign order begins as ours does, so that ids stay as they are."""
        return self == (PAD, EOS, UNK, BOS)


def in_our_order(special: Special, pieces: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """The foreign ids of our subwords, and our pieces, both by our id.

    Ours begin with PAD, EOS, BOS and UNK (text/vocabulary.py). Two numbers are not foreign ids:
    V is a subword that the foreign model lacks, and V + 1 is the decoder's first input, which has a
    row of its own, because here it is BOS and never generated.
    """
    size = len(pieces)
    if special.are_ours:
        return list(range(size)), tuple(pieces)
    taken = set(pieces)
    first = [special.pad, special.eos, size + 1, special.unk]
    rest = [i for i in range(size) if i not in first]
    rows = [size if row is None else row for row in first] + rest

    def name(usual: str) -> str:
        return f"{usual} (ours)" if usual in taken else usual

    names = ["<pad>", "</s>", "<s>", "<unk>"]
    own = [pieces[row] if row < size else name(names[i]) for i, row in enumerate(rows[:4])]
    return rows, (*own, *(pieces[i] for i in rest))


def whole(options: Mapping[str, Any], name: str) -> int:
    """An option that is a whole number. Raises KeyError or TypeError if there is none."""
    try:
        return operator.index(options[name])
    except TypeError:
        raise TypeError(f"{name}={options[name]!r} is not a whole number") from None


def unsupported(options: Mapping[str, Any], supported: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The options, with their values, that have none of their supported values."""
    return [
        f"{name}={options.get(name)!r}"
        for name, values in supported.items()
        if options.get(name) not in values
    ]


def name_unused(what: str, options: Mapping[str, Any]) -> None:
    """Logs which settings of a foreign file the run does not have, unless they change nothing."""
    left = {name: value for name, value in options.items() if value not in NEUTRAL}
    if left:
        given = ", ".join(f"{name}={value!r}" for name, value in sorted(left.items()))
        log.warning("%s: the run has nothing like these, and is without them: %s", what, given)


def imported(
    weights: Weights,
    config: ModelConfig,
    special: tuple[Special, Special],
    bundle: Bundle,
    decode: Mapping[str, Any],
    halves: bool = True,
) -> Imported:
    """A model from its weights under transformers' names.

    Args:
      weights: a block (block.py); tables `[V, d_model]` and `final_logits_bias` `[1, V]` are in the
        foreign order.
      config: our model's config.
      special: foreign ids of the source's and the target's vocabulary, which may be one.
      bundle: its pieces are in the foreign order.
      decode: keys of `decode` beside the banned subwords, which are PAD, BOS and UNK.
      halves: whether the foreign sinusoids have all sines before all cosines.

    Raises:
      DataError: the config is invalid, or an array is missing, has another shape than in the
        config, or has a value that is not a number.
    """
    _check(weights, config)
    ordered = [
        in_our_order(own, pieces) for own, pieces in zip(special, bundle.tables, strict=True)
    ]
    (src_rows, src_pieces), (tgt_rows, tgt_pieces) = ordered
    _warn_of_pieces(bundle)
    if (start := special[1].start) is not None and start >= len(bundle.tables[1]):
        raise DataError(
            f"decoder_start_token_id={start!r} is not an id of the target's vocabulary."
        )
    like = abstract_params(make_model(config, Sizes(len(src_rows), len(tgt_rows))))
    weights = _with_our_rows(weights, start, bundle)
    rows = np.array(src_rows), np.array(tgt_rows)
    params = from_block(weights, config, like, rows, halves)
    _check_used(weights, config, like)
    banned = (tgt_pieces[0], tgt_pieces[2], tgt_pieces[3], *decode.get("banned_subwords", ()))
    own_target = None if bundle.target_pieces is None else tgt_pieces
    bundle = bundle._replace(pieces=src_pieces, target_pieces=own_target)
    return Imported(
        config, {**decode, "banned_subwords": tuple(dict.fromkeys(banned))}, bundle, params
    )


def _warn_of_pieces(bundle: Bundle) -> None:
    """Logs a warning if a vocabulary lacks most pieces of its side's SentencePiece model."""
    for model, pieces, side in zip(bundle[:2], bundle.tables, ("source", "target"), strict=True):
        known = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = range(known.get_piece_size())
        usual = [i for i in ids if not (known.is_control(i) or known.is_unknown(i))]
        own = {known.id_to_piece(i) for i in usual} - {SPACE}  # made of words, it needs a space
        found = len(own.intersection(pieces))
        if found < len(own):
            log.log(
                logging.WARNING if 2 * found < len(own) else logging.INFO,
                "the vocabulary has %d of the %d pieces of the %s's SentencePiece model; the "
                "others are unknown subwords: are these files of one model?",
                found,
                len(own),
                side,
            )


def _check_used(weights: Weights, config: ModelConfig, like: Any) -> None:
    """Raises UserError if there are weights that the model does not have, and that are no copies.

    A file may repeat a matrix under another name, or have the table of the model's sinusoids.
    """
    used = {entry.name for entry in entries(config, like)}
    added = POSITIONS[config.positions].added
    known = [np.asarray(weights[one]) for one in used if one in weights]
    for name in sorted(weights.keys() - used):
        x = np.asarray(weights[name])
        tables = []
        if added is not None and x.ndim == 2 and x.shape[1] == config.d_model:
            tables.append(halves_first(added(config, len(x)), 1).astype(x.dtype))
        same = (one for one in (*tables, *known) if one.shape == x.shape)
        if not any(np.allclose(x, one, atol=1e-3) for one in same):
            raise UserError(
                f"the weights have {name}, and the settings know no such part: are these files of "
                "one model?"
            )


def lengths_for(config: ModelConfig) -> dict[str, int]:
    """Keys that limit lengths and their values, where the model has few positions."""
    longest = longest_of(config)
    usual = {name: value_at(Config(), name) for name in LENGTHS}
    return {name: longest for name, value in usual.items() if longest and longest < value}


def _check(weights: Weights, config: ModelConfig) -> None:
    """Checks the config before arrays of its sizes are made, and the values of the weights."""
    try:
        # data.path has to name a folder.
        check(with_values(Config(model=config), {"data.path": ".", **lengths_for(config)}))
    except ConfigError as error:
        raise DataError(f"The model's settings cannot be right: {error}") from None
    for name, x in weights.items():
        if name in TABLES and x.shape[1:] != (config.d_model,):
            raise DataError(
                f"{name} is {list(x.shape)}, and the settings say d_model={config.d_model}: are "
                "these files of one model?"
            )
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise DataError(f"{name} is of {x.dtype}: weights are floating-point numbers.")
        wrong = np.isnan if name == "final_logits_bias" else lambda x: ~np.isfinite(x)
        with np.errstate(over="ignore"):  # infinite in float32
            narrow = np.asarray(x, np.float32)
        if wrong(narrow).any():  # a bias may be -infinity
            raise DataError(f"{name} has values that are not numbers: the weights are damaged.")


def _with_our_rows(weights: Weights, start: int | None, bundle: Bundle) -> Weights:
    """The weights with rows V and V + 1 of each table, and the biases of these."""
    weights = dict(weights)
    for name in TABLES:
        if name in weights:
            is_target = name != ENCODER_TABLE
            table = np.asarray(weights[name], np.float32)
            size = len(bundle.tables[is_target])
            if len(table) != size:
                raise DataError(
                    f"{name} has {len(table)} rows, and the vocabulary {size} pieces: are these "
                    "files of one model?"
                )
            zeros = np.zeros_like(table[:1])
            # BOS is the decoder's first input; the encoder never reads it.
            first = table[start : start + 1] if is_target and start is not None else zeros
            weights[name] = np.concatenate([table, zeros, first])
    pieces = len(bundle.tables[1])
    if (bias := weights.get("final_logits_bias")) is None or np.size(bias) != pieces:
        has = "is missing" if bias is None else f"has {np.size(bias)} numbers"
        raise DataError(
            f"the bias of the output (final_logits_bias, Marian's decoder_ff_logit_out_b) {has}, "
            f"and the target's vocabulary has {pieces} pieces: are these files of one model?"
        )
    bias = np.asarray(bias, np.float32).reshape(-1)
    weights["final_logits_bias"] = np.append(bias, [NEVER, NEVER])
    return weights


def only_file(folder: Path, what: str, *patterns: str) -> Path:
    """The one file in a folder whose name matches. Raises DataError if there are none or several.

    The first pattern that matches anything decides.
    """
    for pattern in patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found)
            raise DataError(
                f"{folder} has several files that may be its {what}: {names}. Keep one."
            )
    raise DataError(f"{folder} has no {what} ({' or '.join(patterns)}).")


def read_bytes(path: Path) -> bytes:
    """A file's bytes. Raises DataError if it cannot be read."""
    if is_stream(path):
        raise DataError(f"{path} is a pipe or a device, not a file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from None


def read_sentencepiece(path: Path) -> bytes:
    """The bytes of a SentencePiece model. Raises DataError if the file is none."""
    content = read_bytes(path)
    try:
        if content:  # the library accepts none at first
            sentencepiece.SentencePieceProcessor(model_proto=content)
            return content
    except (RuntimeError, OSError):
        pass
    raise DataError(f"{path} is not a SentencePiece model. Download it again.")


def as_number(kind: type[int] | type[float], value: Any, what: str) -> Any:
    """The value as a number of that kind. Raises DataError, naming `what`, if it is none."""
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{what}={value!r} is not a number.") from None
    if isinstance(value, bool) or (kind is int and number != float(value)):
        raise DataError(f"{what}={value!r} is not a whole number.")
    return number
