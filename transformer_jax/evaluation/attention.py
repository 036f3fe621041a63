"""The `attention` command: translates a sentence and draws what its subwords attended to.

Dimension key
  N layers   H heads   L length of what attends   M length of what is attended to
"""

import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.commands.loading import LoadedModel, load_model
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.model.encoder_decoder import shift_right
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Text, write_page
from transformer_jax.reporting.plots import plot_attention, printable
from transformer_jax.text.vocabulary import BOS


class Kind(NamedTuple):
    """One of the model's three uses of attention (Vaswani et al. 2017, section 3.2.3)."""

    stack: str  # whose layers hold it: "encoder" or "decoder"
    module: str  # its name in a layer
    title: str
    about: str


KINDS = {
    "encoder": Kind(
        "encoder",
        "self_attention",
        "Encoder self-attention",
        "Rows and columns are the subwords of the source; each row may look at all of them.",
    ),
    "decoder": Kind(
        "decoder",
        "self_attention",
        "Decoder self-attention",
        "A row is the subword that is said next, a column one that was said before it; <s> is the "
        "beginning. What is not yet said cannot be attended to: the upper triangle is 0.",
    ),
    "cross": Kind(
        "decoder",
        "cross_attention",
        "Encoder-decoder attention",
        "A row is the subword that is said next, a column one of the source.",
    ),
}
ALL = "all"


class Attention(NamedTuple):
    """The weights of one kind within one sentence pair, and whose they are."""

    weights_NHLM: np.ndarray  # float32 [layers, heads, attending, attended to]; rows sum to 1
    attending: list[str]  # subwords, one a row; in the decoder those said next
    attended: list[str]  # subwords, one a column


class AttendedSentence(NamedTuple):
    """A sentence, its translation, and what the model attended to while it said that."""

    source: str
    translation: str
    checkpoint: str
    kinds: Mapping[str, Attention]  # by the names of KINDS


def pair_attention(
    loaded: LoadedModel, src_ids: np.ndarray, tgt_ids: np.ndarray
) -> dict[str, Attention]:
    """Weights of every kind, layer and head while the model is forced to say a translation.

    Args:
      loaded: the model.
      src_ids: subwords of the source, EOS included, int32 `[src_len]`.
      tgt_ids: subwords of the translation, EOS included, int32 `[tgt_len]`.

    Returns:
      By the names of KINDS. Encoder `[layers, heads, src_len, src_len]`, decoder `[layers, heads,
      tgt_len, tgt_len]`, whose row and column n belong to `tgt_ids[n]` and to what is said before
      it (BOS at 0), and cross `[layers, heads, tgt_len, src_len]`.
    """
    src, tgt = (jnp.asarray(ids, jnp.int32)[None] for ids in (src_ids, tgt_ids))
    src_positions, tgt_positions = (jnp.arange(ids.shape[1])[None] for ids in (src, tgt))
    inputs = shift_right(tgt, tgt_positions, BOS)
    model = loaded.translator.model
    # Compiled as a whole: one operation after the other takes three times as long.
    run = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, state = run(
        {"params": loaded.translator.params},
        *(src, jnp.ones_like(src), src_positions),
        *(inputs, jnp.ones_like(tgt), tgt_positions),
    )
    source, said = (loaded.vocabulary.pieces(ids) for ids in (src_ids, tgt_ids))
    before = loaded.vocabulary.pieces(np.asarray(inputs[0]))
    pieces = {"encoder": (source, source), "decoder": (said, before), "cross": (said, source)}
    sown, layers = state["intermediates"], range(model.config.num_layers)

    def weights(kind: Kind) -> np.ndarray:
        every = [sown[f"{kind.stack}_{n}"][kind.module]["attention_weights"] for n in layers]
        return np.stack([weights_1HLM[0] for [weights_1HLM] in every])

    return {name: Attention(weights(kind), *pieces[name]) for name, kind in KINDS.items()}


def attend(
    workdir: str, sentence: str, checkpoint: str = "latest", layer: int | None = None
) -> AttendedSentence:
    """Translates a sentence with a run's model, and notes what was attended to.

    Args:
      workdir: the run's folder.
      sentence: a source line.
      checkpoint: "latest", "best", "average" or a step.
      layer: from 1, one that is going to be drawn; None: any.

    Raises:
      UserError: no run, no checkpoint, no such layer, a blank sentence, no translation is found, or
        the model is no Transformer.
    """
    loaded = load_model(workdir, checkpoint)
    if loaded.config.model.kind != "transformer":
        raise ConfigError(
            f"{workdir} is of model.kind={loaded.config.model.kind!r}: layers and heads are drawn "
            "of a Transformer alone."
        )
    layers = loaded.config.model.num_layers
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: this model has layers 1 to {layers}.")
    translator = loaded.line_translator()
    [src_ids] = translator.encode([sentence])
    translator.warn_of_cut()
    if not len(src_ids):
        raise ConfigError("The sentence is blank: give one to translate.")
    [hypotheses] = loaded.translator.translate([src_ids])
    if not hypotheses:
        raise RunError(f"{workdir}: the model finds no translation; did its training diverge?")
    best = hypotheses[0].ids
    found = pair_attention(loaded, src_ids, best)
    return AttendedSentence(sentence, translator.text(best), loaded.checkpoint, found)


def draw_layer(found: AttendedSentence, kind: str, layer: int, path: Path) -> Picture:
    """A PNG with a heat map for each head of a layer, counted from 1, and its caption."""
    weights_NHLM, attending, attended = found.kinds[kind]
    which = f"layer {layer} of {len(weights_NHLM)}"
    title = f"{KINDS[kind].title}, {which}"
    plot_attention(weights_NHLM[layer - 1], attended, attending, path, title)
    return Picture(path, which.capitalize())


def draw_kinds(
    found: AttendedSentence, kinds: Sequence[str], folder: Path, layer: int | None = None
) -> list[Part]:
    """The parts of a page: of each kind what it is, and its layers; their PNGs go into `folder`.

    Args:
      found: what to draw.
      kinds: names of KINDS.
      folder: where attention_KIND_LAYER.png are written.
      layer: from 1; None: all.
    """
    words = f"source       {printable(found.source)}\ntranslation  {printable(found.translation)}"
    parts: list[Part] = [Code(words)]
    for kind in kinds:
        every = range(1, len(found.kinds[kind].weights_NHLM) + 1)
        parts += [Heading(KINDS[kind].title), Text(KINDS[kind].about)]
        parts += [
            draw_layer(found, kind, n, folder / f"attention_{kind}_{n}.png")
            for n in (every if layer is None else [layer])
        ]
    return parts


def attention(
    workdir: str,
    *,
    sentence: str,
    output: str,
    kind: str = "cross",
    layer: int | None = None,
    checkpoint: str = "latest",
) -> Path:
    """Prints a sentence's translation and the path of a PNG or page with a heat map for each head.

    Args:
      workdir: the run's folder.
      sentence: a source line.
      output: the file to write: .png for one layer, .html for a page that needs nothing else.
      kind: "cross", "encoder" or "decoder"; "all" for a page of all three.
      layer: from 1; None: the last for a PNG, all for a page.
      checkpoint: "latest", "best", "average" or a step.

    Raises:
      UserError: no run, no checkpoint, no such kind or layer, a blank sentence, or no folder to
        draw into.
    """
    path = Path(output)
    _check(path, kind)
    found = attend(workdir, sentence, checkpoint, layer)
    if path.suffix == ".png":
        last = len(found.kinds[kind].weights_NHLM)
        draw_layer(found, kind, last if layer is None else layer, path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            kinds = list(KINDS) if kind == ALL else [kind]
            parts = draw_kinds(found, kinds, Path(folder), layer)
            run = Text(f"{printable(str(workdir))}, checkpoint {found.checkpoint}.")
            write_page(path, "What was attended to", [run, *parts])
    print(f"translation {found.translation}\nattention   {path}")
    return path


def _check(output: Path, kind: str) -> None:
    """Before the work. Raises ConfigError where nothing can be drawn."""
    if output.suffix not in (".png", ".html") or output.is_dir():
        raise ConfigError(
            f"--output={output}: a PNG or a page is written; name a file that ends in .png or "
            ".html."
        )
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output={output}: its folder is not there. Make it first.")
    if kind not in (*KINDS, ALL):
        raise ConfigError(f"--kind={kind} is not one of {', '.join((*KINDS, ALL))}.")
    if kind == ALL and output.suffix == ".png":
        raise ConfigError(f"--kind={ALL} fills a page: name one that ends in .html, or one kind.")
