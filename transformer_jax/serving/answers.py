"""Answers to requests, computed with a loaded run; requests that come together share a search.

Dimension key
  L target subwords   M source subwords
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from transformer_jax.api import Run
from transformer_jax.config.decode import PARALLEL
from transformer_jax.decoding.generators import GENERATORS
from transformer_jax.decoding.lines import Translation
from transformer_jax.errors import UserError
from transformer_jax.evaluation.alignment import links
from transformer_jax.model.attention.maps import layers_of_use
from transformer_jax.model.sides.choices import decoder_of
from transformer_jax.serving.asked import Asked, Model, Refused
from transformer_jax.text.words import NONE, spelled_words, subword_words

Answer = dict[str, Any]  # a JSON object


def model_of(run: Run) -> Model:
    """What the request checks need to know about a run's model."""
    model = run.loaded.model
    config = run.config.model
    layers = 0 if config.parallel else layers_of_use(model, "cross")
    heads = config.num_heads if decoder_of(config).multi_head else 1
    return Model(_most_translations(run), layers, heads, config.sources)


def _most_translations(run: Run) -> int:
    """How many translations a line may have."""
    decode = run.config.decode
    most, _ = GENERATORS[decode.method].most(decode)
    return most if decode.method in PARALLEL else min(decode.beam_size, most)


def _searched(run: Run, n_best: int) -> int:
    """How many translations are searched for if n_best are asked for.

    The n best are the first n of more, so that one search does for all n above 1. A diverse search
    takes equally many from each group, and so each multiple of the groups has a search.
    """
    if (groups := run.loaded.translator.groups) > 1:
        return groups * -(-n_best // groups)
    return 1 if n_best == 1 else _most_translations(run)


def answer_all(run: Run, asked: Sequence[Asked]) -> list[Answer | Refused]:
    """The answer to each request, or why it is refused; one search for all that can share it."""
    found: list[Answer | Refused | None] = [_too_long(run, one) for one in asked]
    searches = [_searched(run, one.n_best) for one in asked]
    for most in set(searches):
        chosen = [
            i
            for i, one in enumerate(asked)
            if found[i] is None and one.target is None and searches[i] == most
        ]
        lines = [line for i in chosen for line in asked[i].lines]
        translated = iter(run.n_best(lines, most) if lines else ())
        for i in chosen:
            results = [next(translated)[: asked[i].n_best] for _ in asked[i].lines]
            found[i] = _translations(run, asked[i], results)
    return [
        _given(run, one) if answer is None else answer
        for one, answer in zip(asked, found, strict=True)
    ]


def _too_long(run: Run, asked: Asked) -> Refused | None:
    """The refusal of a request whose lines the model would have to cut; None if it fits.

    Also of one that does not say into which language, where the model knows several.
    """
    translator = run.loaded.line_translator()
    try:
        translator.encode(asked.lines)
    except UserError as error:
        return Refused(400, str(error))
    if asked.target is not None:
        translator.encode([asked.target], is_target=True)
    if not translator.cut:
        return None
    return Refused(413, f"A line has more subwords than the model takes: {translator.longest - 1}.")


def _translations(run: Run, asked: Asked, results: Sequence[Sequence[Translation]]) -> Answer:
    lines = []
    for source, translations in zip(asked.lines, results, strict=True):
        listed = [{"text": one.text, "score": _finite(one.score)} for one in translations]
        line: Answer = {"source": source, "translations": listed}
        if asked.attention:
            line["attention"] = None
            with contextlib.suppress(UserError):  # a side is blank
                line["attention"] = _attention(run, asked, source, translations[0].text)
        lines.append(line)
    return {"checkpoint": run.checkpoint, "lines": lines}


def _given(run: Run, asked: Asked) -> Answer | Refused:
    """The answer to a request with a given translation, which is not searched for."""
    [source] = asked.lines
    try:
        attention = _attention(run, asked, source, asked.target or "")
    except UserError as error:  # a code of a language alone, for example
        return Refused(400, str(error))
    return {"checkpoint": run.checkpoint, "attention": attention}


def _attention(run: Run, asked: Asked, source: str, target: str) -> Answer:
    """The weights of a layer and head, and the alignment by them.

    Raises:
      UserError: a side has no subwords.
    """
    cross = run.attention(source, target).kinds["cross"]
    weights_HLM = cross.weights_NHLM[asked.layer - 1]
    weights_LM = weights_HLM.mean(0) if asked.head is None else weights_HLM[asked.head - 1]
    answer = {
        "layer": asked.layer,
        "head": asked.head,
        "source_subwords": cross.attended,
        "target_subwords": cross.attending,
        "weights": [[round(float(weight), 4) for weight in row] for row in weights_LM],
    }
    words = spelled_words(cross.attended), spelled_words(cross.attending)
    try:
        word_numbers = (
            subword_words(cross.attended, words[0]),
            subword_words(cross.attending, words[1]),
        )
    except UserError:  # byte pieces that are no character: these subwords spell no words
        return answer | {"source_words": [], "target_words": [], "alignment": []}
    [[linked_J]] = links(weights_LM[None, None], *word_numbers)
    alignment = [None if word == NONE else word for word in linked_J.tolist()]
    return answer | {"source_words": words[0], "target_words": words[1], "alignment": alignment}


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None  # JSON has no infinity
