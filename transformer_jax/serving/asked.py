"""What a request may ask for. Anything else is refused with an HTTP status and one sentence."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.files import each_once
from transformer_jax.text.lines import is_text
from transformer_jax.text.sources import TAB


class Limits(NamedTuple):
    """Bounds on one request, and on all requests at a time."""

    body_bytes: int = 1 << 16
    lines: int = 64
    characters: int = 2_000  # the longest line
    requests: int = 64  # that wait or are being answered
    body_seconds: float = 10.0  # until the whole request must have arrived


class Model(NamedTuple):
    """What the checks need to know about the model."""

    beam_size: int  # most translations of a line
    layers: int  # layers with encoder-decoder attention; 0: it has none
    heads: int
    sources: int = 1  # source sentences of a line, with tabs between them


class Refused(Exception):
    """A request that is not answered, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asked(NamedTuple):
    """A request that passed the checks."""

    lines: list[str]
    n_best: int = 1
    attention: bool = False
    layer: int = 0  # from 1
    head: int | None = None  # from 1; None: the mean of all heads
    target: str | None = None  # the one line's given translation; then nothing is searched


def parse_translate(body: bytes, limits: Limits, model: Model) -> Asked:
    """The request of POST /translate. Raises Refused if it is wrong."""
    values = _object(body, ("text", "lines", "n_best", "attention", "layer", "head"))
    if ("text" in values) == ("lines" in values):
        raise Refused(400, 'Give "text", a string, or "lines", a list of strings.')
    lines = _lines(values, limits, model)
    attention = values.get("attention", False)
    if not isinstance(attention, bool):
        raise Refused(400, '"attention" is true or false.')
    if not attention and not {"layer", "head"}.isdisjoint(values):
        raise Refused(400, '"layer" and "head" go with "attention": true.')
    n_best = _whole(values, "n_best", 1, model.beam_size)
    layer, head = _which(values, model) if attention else (0, None)
    return Asked(lines, n_best, attention, layer, head)


def parse_attention(body: bytes, limits: Limits, model: Model) -> Asked:
    """The request of POST /attention. Raises Refused if it is wrong."""
    values = _object(body, ("source", "target", "layer", "head"))
    for name in ("source", "target"):
        if not isinstance(values.get(name), str):
            raise Refused(400, f'Give "{name}", a string.')
        _check_line(values[name], f'"{name}"', limits)
        if not values[name].strip():
            raise Refused(400, f'"{name}" is blank.')
    _check_sources(values["source"], '"source"', model)
    layer, head = _which(values, model)
    return Asked([values["source"]], 1, True, layer, head, values["target"])


def _object(body: bytes, names: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        values = json.loads(body.decode("utf-8"), object_pairs_hook=each_once)
    except UnicodeDecodeError:
        raise Refused(400, "The body is not UTF-8.") from None
    except (json.JSONDecodeError, RecursionError):
        raise Refused(400, "The body is not JSON.") from None
    except ValueError as error:  # a name twice, or a number of more than 4,300 digits
        raise Refused(400, f"The body cannot be read: {str(error).partition(': ')[0]}.") from None
    if not isinstance(values, dict):
        raise Refused(400, "The body is not a JSON object.")
    unknown = [name for name in values if name not in names]
    if unknown:
        raise Refused(400, f"{ascii(unknown[0])[:60]} is unknown. Names: {', '.join(names)}.")
    return values


def _lines(values: Mapping[str, Any], limits: Limits, model: Model) -> list[str]:
    lines = values.get("lines")
    if "text" in values:
        if not isinstance(values["text"], str):
            raise Refused(400, '"text" is not a string.')
        lines = [line.removesuffix("\r") for line in values["text"].split("\n")]
    if not isinstance(lines, list) or not lines:
        raise Refused(400, '"lines" is not a list of at least one string.')
    if len(lines) > limits.lines:
        raise Refused(413, f"{len(lines)} lines are too many: at most {limits.lines}.")
    for number, line in enumerate(lines):
        _check_line(line, f"Line {number} (from 0)", limits)
        _check_sources(line, f"Line {number} (from 0)", model)
    return lines


def _check_line(line: Any, name: str, limits: Limits) -> None:
    if not isinstance(line, str):
        raise Refused(400, f"{name} is not a string.")
    if "\n" in line or "\r" in line:
        raise Refused(400, f"{name} has a line end: give each sentence as a line of its own.")
    if len(line) > limits.characters:
        raise Refused(413, f"{name} has {len(line)} characters: at most {limits.characters}.")
    if not is_text(line):
        raise Refused(400, f"{name} has half of a surrogate pair.")


def _check_sources(line: str, name: str, model: Model) -> None:
    tabs = line.count(TAB)
    if model.sources > 1 and line.strip() and tabs != model.sources - 1:
        raise Refused(
            400,
            f"{name} has {tabs} tabs: the model reads {model.sources} sentences, with a tab "
            "between them.",
        )


def _which(values: Mapping[str, Any], model: Model) -> tuple[int, int | None]:
    """The layer and the head, from 1; without a layer the last, without a head None."""
    if not model.layers:
        raise Refused(400, "This model has no encoder-decoder attention that could be shown.")
    layer = _whole(values, "layer", model.layers, model.layers)
    head = None if values.get("head") is None else _whole(values, "head", 1, model.heads)
    return layer, head


def _whole(values: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise Refused(400, f'"{name}" is not a whole number from 1 to {most}.')
    return value
