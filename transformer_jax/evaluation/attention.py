"""The `attention` command: translates a sentence and draws what each target subword attended to.

Dimension key
  N decoder layers   H heads   L target length   M source length
"""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.decoding.translate import LineTranslator, LoadedModel, load_model
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.model.transformer import shift_right
from transformer_jax.reporting.plots import plot_attention
from transformer_jax.text.vocabulary import BOS


class CrossAttention(NamedTuple):
    """Encoder-decoder attention of one sentence pair."""

    weights_NHLM: np.ndarray  # float32 [decoder layers, heads, tgt_len, src_len]
    src_pieces: list[str]
    tgt_pieces: list[str]


def cross_attention(
    loaded: LoadedModel, src_ids: np.ndarray, tgt_ids: np.ndarray
) -> CrossAttention:
    """Weights of every decoder layer and head while the model is forced to say a translation.

    Args:
      loaded: the model.
      src_ids: subwords of the source, EOS included, int32 `[src_len]`.
      tgt_ids: subwords of the translation, EOS included, int32 `[tgt_len]`.
    """
    src, tgt = (jnp.asarray(ids, jnp.int32)[None] for ids in (src_ids, tgt_ids))
    src_positions, tgt_positions = (jnp.arange(ids.shape[1])[None] for ids in (src, tgt))
    translator = loaded.translator
    _, sown = translator.model.apply(
        {"params": translator.params},
        src,
        jnp.ones_like(src),
        src_positions,
        shift_right(tgt, tgt_positions, BOS),
        jnp.ones_like(tgt),
        tgt_positions,
        mutable=["intermediates"],
    )
    layers = [
        sown["intermediates"][f"decoder_{n}"]["cross_attention"]["attention_weights"][0][0]
        for n in range(translator.model.config.num_layers)
    ]
    pieces = loaded.vocabulary.pieces
    return CrossAttention(np.stack(layers), pieces(src_ids), pieces(tgt_ids))


def attention(
    workdir: str,
    *,
    sentence: str,
    output: str,
    layer: int | None = None,
    checkpoint: str = "latest",
) -> Path:
    """Prints a sentence's translation and the path of a PNG with a heat map for each head.

    Args:
      workdir: the run's folder.
      sentence: a source line.
      output: the PNG to write.
      layer: of the decoder, from 1; None: the last.
      checkpoint: "latest", "best", "average" or a step.

    Raises:
      UserError: no run, no checkpoint, no such layer, a blank sentence, or no folder to draw into.
    """
    if Path(output).suffix != ".png" or Path(output).is_dir():
        raise ConfigError(f"--output={output}: a PNG is written; name a file that ends in .png.")
    if not Path(output).absolute().parent.is_dir():
        raise ConfigError(f"--output={output}: its folder is not there. Make it first.")
    loaded = load_model(workdir, checkpoint)
    layers = loaded.config.model.num_layers
    layer = layers if layer is None else layer
    if not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: this model's decoder has layers 1 to {layers}.")
    translator = LineTranslator(loaded.vocabulary, loaded.translator)
    [src_ids] = translator.encode([sentence])
    translator.warn_of_cut()
    if not len(src_ids):
        raise ConfigError("--sentence is blank: give a sentence to translate.")
    [hypotheses] = loaded.translator.translate([src_ids])
    if not hypotheses:
        raise RunError(f"{workdir}: the model finds no translation; did its training diverge?")
    best = hypotheses[0].ids
    found = cross_attention(loaded, src_ids, best)
    title = f"Encoder-decoder attention, layer {layer} of {layers}"
    path = plot_attention(
        found.weights_NHLM[layer - 1], found.src_pieces, found.tgt_pieces, output, title
    )
    print(f"translation {translator.text(best)}\nattention   {path}")
    return path
