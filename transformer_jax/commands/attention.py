"""The `attention` command: translates a sentence and draws what its subwords attended to.

Dimension key
  N layers   H heads   L attending subwords   M subwords attended to
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.commands.loading import LoadedModel, load_model
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.evaluation.attention import KINDS, Attention, pair_attention
from transformer_jax.model.attention_maps import USES, uses_of
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Text, write_page
from transformer_jax.reporting.plots import plot_attention, printable

ALL = "all"  # the --kind that draws all of KINDS


class AttendedSentence(NamedTuple):
    """A sentence, its translation, and the attention weights of the pair."""

    source: str
    translation: str
    checkpoint: str
    kinds: Mapping[str, Attention]  # by the names of KINDS


def attend(
    workdir: str,
    sentence: str,
    checkpoint: str = "latest",
    layer: int | None = None,
    kinds: Sequence[str] = tuple(KINDS),
) -> AttendedSentence:
    """Translates a sentence with a run's model, and returns its attention weights.

    Args:
      workdir: the run's folder.
      sentence: a source line.
      checkpoint: "latest", "best", "average" or a step.
      layer: number from 1 of the layer that is drawn of each kind; None: all layers.
      kinds: names of KINDS that the model must have.

    Raises:
      UserError: there is no such run, checkpoint or layer, the sentence is blank, the model finds
        no translation, or it has no attention of a kind.
    """
    loaded = load_model(workdir, checkpoint)
    _check_kinds(loaded, kinds, layer)
    translator, lines = loaded.translator, loaded.line_translator()
    [src_ids] = lines.encode([sentence])
    lines.warn_of_cut()
    if not len(src_ids):
        raise ConfigError("The sentence is blank: give one to translate.")
    [hypotheses] = translator.translate([src_ids])
    if not hypotheses:
        raise RunError(f"{workdir}: the model finds no translation; did its training diverge?")
    best = hypotheses[0].ids
    model, params = translator.model, translator.params
    found = pair_attention(model, params, loaded.vocabulary, src_ids, best)
    return AttendedSentence(sentence, lines.text(best), loaded.checkpoint, found)


def _check_kinds(loaded: LoadedModel, kinds: Sequence[str], layer: int | None) -> None:
    model = loaded.translator.model
    missing = [kind for kind in kinds if kind not in uses_of(model)]
    if missing:
        of = loaded.config.model
        raise ConfigError(
            f"--kind={missing[0]}: this model has no such layers and heads (model.encoder="
            f"{of.encoder!r}, model.decoder={of.decoder!r}); only a Transformer's are drawn."
        )
    stacks = model.stacks()
    layers = min(stacks[USES[kind][0]][1] for kind in kinds)  # that every kind has
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: this model has layers 1 to {layers}.")


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
    """The parts of a page: one section per kind with the PNGs of its layers.

    Args:
      found: the sentence and its weights.
      kinds: names of KINDS.
      folder: where the files attention_KIND_LAYER.png are written.
      layer: number from 1; None: all layers.
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
      output: the file to write: .png for one layer, .html for a self-contained page.
      kind: "cross", "encoder" or "decoder"; "all" for a page of all three.
      layer: from 1; None: the last for a PNG, all for a page.
      checkpoint: "latest", "best", "average" or a step.

    Raises:
      UserError: as `attend`, or there is no such kind, or `output` cannot be written.
    """
    path = Path(output)
    _check(path, kind)
    kinds = list(KINDS) if kind == ALL else [kind]
    found = attend(workdir, sentence, checkpoint, layer, kinds)
    if path.suffix == ".png":
        last = len(found.kinds[kind].weights_NHLM)
        draw_layer(found, kind, last if layer is None else layer, path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            parts = draw_kinds(found, kinds, Path(folder), layer)
            run = Text(f"{printable(str(workdir))}, checkpoint {found.checkpoint}.")
            write_page(path, "What was attended to", [run, *parts])
    print(f"translation {found.translation}\nattention   {path}")
    return path


def _check(output: Path, kind: str) -> None:
    """Raises ConfigError if the kind cannot be drawn into that file; called before the work."""
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
