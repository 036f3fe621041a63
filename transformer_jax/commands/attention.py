"""The `attention` command: draws what the subwords of a sentence and its translation attend to.

Dimension key
  N layers   H heads   L attending subwords   M subwords attended to
"""

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.api import AttendedSentence, Run
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.attention import EXPLAINED, KINDS
from transformer_jax.evaluation.explanations import EXPLANATIONS, check_method
from transformer_jax.files import write_atomically
from transformer_jax.model.attention.maps import layers_of_use, uses_of
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Text, write_page
from transformer_jax.reporting.plots import printable, save_figure
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model

ALL = "all"  # the --kind of all of KINDS
PICTURES = (".png", ".pdf", ".svg")  # of one layer
WEIGHTS = (".npz", ".json")
FORMATS = (*PICTURES, ".html", *WEIGHTS)


def draw_layer(found: AttendedSentence, kind: str, layer: int, path: Path) -> Picture:
    """Draws a layer, numbered from 1, into `path`: one heat map per head."""
    save_figure(found.plot(kind, layer), path)
    return Picture(path, f"Layer {layer} of {len(found.kinds[kind].weights_NHLM)}")


def draw_kinds(
    found: AttendedSentence, kinds: Sequence[str], folder: Path, layer: int | None = None
) -> list[Part]:
    """The parts of a page: one section per kind with the PNGs of its layers.

    Args:
      kinds: names of KINDS.
      folder: where the files attention_KIND_LAYER.png are written.
      layer: number from 1; None: all layers.
    """
    words = f"source       {printable(found.source)}\n{_called(found):<13}"
    parts: list[Part] = [Code(words + printable(found.translation))]
    for kind in kinds:
        every = range(1, len(found.kinds[kind].weights_NHLM) + 1)
        about = EXPLAINED[kind] if found.explain else KINDS[kind]
        parts += [Heading(about.title), Text(about.about)]
        parts += [
            draw_layer(found, kind, n, folder / f"attention_{kind}_{n}.png")
            for n in (every if layer is None else [layer])
        ]
    return parts


def _called(found: AttendedSentence) -> str:
    return "target" if found.is_given else "translation"


def write_weights(
    found: AttendedSentence, kinds: Sequence[str], path: Path, layer: int | None = None
) -> None:
    """Writes the weights of these kinds, with the subwords of their rows and columns.

    Args:
      kinds: names of KINDS.
      path: .json: an object with source, translation and checkpoint, and with an object for each
        kind: weights [layers, heads, attending, attended], layers and heads (numbers from 1),
        attending and attended (subwords). .npz: the same, as arrays KIND_weights, KIND_layers and
        so on.
      layer: number from 1; None: all layers.
    """
    names = ("source", "translation", "checkpoint", *(("explain",) if found.explain else ()))
    texts = {name: getattr(found, name) for name in names}
    parts: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        own = found.kinds[kind]
        layers = [n for n in range(1, len(own.weights_NHLM) + 1) if layer in (None, n)]
        parts[kind] = {
            "weights": own.weights_NHLM[np.array(layers) - 1],
            "layers": layers,
            "heads": list(own.heads),
            "attending": own.attending,
            "attended": own.attended,
        }
    if path.suffix == ".json":
        for part in parts.values():
            part["weights"] = part["weights"].astype(np.float64).round(7).tolist()
        text = json.dumps({**texts, **parts}, ensure_ascii=False) + "\n"
        content = text.encode("utf-8", "backslashreplace")  # an escape that JSON has too
    else:
        arrays: dict[str, Any] = {name: np.array(text) for name, text in texts.items()}
        for kind, part in parts.items():
            arrays |= {f"{kind}_{name}": np.array(value) for name, value in part.items()}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        content = file.getvalue()
    write_atomically(path, content)


def attention(
    workdir: str,
    *,
    sentence: str,
    output: str,
    kind: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    checkpoint: str = "latest",
    target: str | None = None,
    explain: str | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> Path:
    """Prints a sentence's translation and the path of the file with the attention of each head.

    Args:
      sentence: a source line.
      output: the file to write: .png, .pdf or .svg with heat maps of one layer, .html for a
        self-contained page, .npz or .json for the weights (see `write_weights`).
      kind: "cross", "encoder" or "decoder"; "all" for those that the model has, but not in one
        picture.
      layer: from 1; None: the last for a picture, else all.
      head: from 1; None: all.
      target: the translation that the model is given; None: its own.
      explain: a name in EXPLANATIONS, in place of the weights; kind: "cross", "decoder" or "all".
      workdir, checkpoint, overrides: see `load_model`.

    Raises:
      UserError: there is no such run, checkpoint, kind or layer, the sentence or target is blank,
        the model finds no translation, or `output` cannot be written.
    """
    path = Path(output)
    _check_output(path, kind, workdir)
    if explain is not None:
        _check_explain(explain, layer or head, kind)
    run = Run(load_model(workdir, checkpoint, overrides=overrides))
    if explain is None:
        _check_kinds(run.loaded, () if kind == ALL else [kind], layer)
    found = run.attention(sentence, target, explain)
    kinds = list(found.kinds) if kind == ALL else [kind]
    if head is not None:
        found = found._replace(kinds={name: found.kinds[name].of_head(head) for name in kinds})
    if path.suffix in PICTURES:
        last = len(found.kinds[kind].weights_NHLM)
        draw_layer(found, kind, last if layer is None else layer, path)
    elif path.suffix in WEIGHTS:
        write_weights(found, kinds, path, layer)
    else:
        with tempfile.TemporaryDirectory() as folder:
            parts = draw_kinds(found, kinds, Path(folder), layer)
            about = Text(f"{printable(str(workdir))}, checkpoint {found.checkpoint}.")
            title = f"What it owes to, by {explain}" if explain else "What was attended to"
            write_page(path, title, [about, *parts])
    print(f"{_called(found):<12}{found.translation}\nattention   {path}")
    return path


def _check_output(output: Path, kind: str, workdir: str) -> None:
    """Raises ConfigError if the kind cannot be written into that file, or it is one of the run's.

    The run's own files are no pictures.
    """
    if output.is_dir():
        raise ConfigError(f"--output={output} is a folder: name a file in it.")
    if output.suffix not in FORMATS:
        raise ConfigError(
            f"--output={output}: name a file that ends in one of {', '.join(FORMATS)}."
        )
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output={output}: its folder is not there. Make it first.")
    if kind not in (*KINDS, ALL):
        raise ConfigError(f"--kind={kind} is not one of {', '.join((*KINDS, ALL))}.")
    if kind == ALL and output.suffix in PICTURES:
        others = ", ".join(name for name in FORMATS if name not in PICTURES)
        raise ConfigError(
            f"--kind={ALL} is more than a picture: name a file that ends in one of {others}, or "
            "one kind."
        )
    is_inside = RunFolder(workdir).path.resolve() in output.resolve().parents
    if output.exists() and is_inside and output.suffix in WEIGHTS:
        raise ConfigError(
            f"--output={output} is a file of the run in {workdir}, and would be overwritten. Give "
            "another name."
        )


def _check_explain(explain: str, part: int | None, kind: str) -> None:
    """Raises ConfigError if there is no such method, or it is asked about a part of the model."""
    check_method(explain)
    if kind == "decoder" and not EXPLANATIONS[explain].of_target:
        raise ConfigError(
            f"--explain={explain} hides nothing of the translation: name --kind=cross or all."
        )
    if part or kind == "encoder":
        raise ConfigError(
            f"--explain={explain} is about the whole model, from the translation back: leave out "
            "--layer and --head, and name --kind=cross, decoder or all."
        )


def _check_kinds(loaded: LoadedModel, kinds: Sequence[str], layer: int | None) -> None:
    """Raises ConfigError if the model lacks one of these kinds (none given: any), or the layer."""
    model = loaded.model
    own = uses_of(model)
    missing = [kind for kind in kinds or own or [ALL] if kind not in own]
    if missing:
        config = loaded.config.model
        has = f"it has {' and '.join(own)}" if own else "its attention has no layers"
        raise ConfigError(
            f"--kind={missing[0]}: this model has no such layers and heads (model.encoder="
            f"{config.encoder!r}, model.decoder={config.decoder!r}); {has}."
        )
    layers = min(layers_of_use(model, kind) for kind in kinds or own)  # that every kind has
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: this model has layers 1 to {layers}.")
