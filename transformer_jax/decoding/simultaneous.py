"""Translates sentences while they arrive: greedy search of a wait-k model.

Target subword t, from 1, is generated once k + t - 1 source subwords are read, or all of them (Ma
et al. 2019, equation 3). Each source subword is encoded once, and its keys and values join those of
the subwords before it. A step of search is the `advance` of beam search with one beam, so the
output is what beam search with one beam finds for the whole sentence.

It translates one sentence at a time, in row 0; the mesh decides how many further, empty rows there
are. All arrays have the size of the longest sentence, so that `begin`, `read` and `write` are each
compiled once.

Dimension key
  B rows; the first one has a sentence   K beams, 1
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from transformer_jax.decoding.exclusions import Exclusions
from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.decoding.search import advance, make_rules
from transformer_jax.decoding.state import SearchState, empty_search, is_live, start_sentences
from transformer_jax.errors import ConfigError
from transformer_jax.model.axes import BATCH, names_of, unboxed
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Cache, Memory, Now, Params, SearchSizes, Stepped
from transformer_jax.model.sides.choices import ENCODERS
from transformer_jax.parallel.mesh import batch_ways, placed, shardings
from transformer_jax.text.arriving import ArrivingLine, word_ends
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import EOS

REPLACEMENT = "\ufffd"  # decoding gives this for bytes that are not a whole character


class Shape(NamedTuple):
    """Everything that the compilations depend on, except the model."""

    mesh: Mesh
    sizes: SearchSizes  # the longest sentence's
    exclusions: Exclusions  # what no translation contains


class Sentence(NamedTuple):
    """The arrays of a sentence that is being read and translated."""

    encoder_cache: Cache  # for the source subwords that were read
    search: SearchState  # its memory has the source subwords that were read


def boxed_sentence(model: EncoderDecoder, shape: Shape) -> Sentence:
    """A sentence before its first subword; caches are in boxes with the names of their axes."""
    sizes = shape.sizes
    memory = model.boxed_memory(sizes)
    cache = model.boxed_cache(sizes)
    search = empty_search(
        unboxed(memory), unboxed(cache), sizes.batch, beam_size=1, size=sizes.length
    )
    limits_B = jnp.zeros(sizes.batch, jnp.int32).at[0].set(sizes.length)
    search = start_sentences(search, jnp.arange(sizes.batch), limits_B)
    search = search._replace(memory=memory, cache=cache)
    return Sentence(model.boxed_source_cache(sizes), search)


@functools.partial(jax.jit, static_argnames=("model", "shape"))
def begin(model: EncoderDecoder, shape: Shape, params: Params) -> Sentence:
    """A sentence before its first subword."""
    encoder_cache, search = unboxed(boxed_sentence(model, shape))
    # Unread positions hold what `remember` makes of zero vectors. With zeros instead, an attention
    # memory (model/attention/memories.py) would divide by 0.
    zeros_BM = jnp.zeros((shape.sizes.batch, shape.sizes.src_length), jnp.int32)
    features = ENCODERS[model.config.encoder].features(model.config)
    arguments: Any = (jnp.zeros((*zeros_BM.shape, features)), Packed(*[zeros_BM] * 3))
    memory: Any = model.apply({"params": params}, *arguments, method="remember")
    return _on_mesh(model, shape, Sentence(encoder_cache, search._replace(memory=memory)))


@functools.partial(jax.jit, static_argnames=("model", "shape"), donate_argnames="sentence")
def read(
    model: EncoderDecoder,
    shape: Shape,
    params: Params,
    sentence: Sentence,
    subword: Any,
    position: Any,
) -> Sentence:
    """Reads one source subword.

    Args:
      model: a wait-k model.
      shape: the shape of all sentences.
      params: the model's parameters.
      sentence: donated.
      subword: its id, int32 scalar.
      position: its 0-based position, int32 scalar.
    """
    subword_B, position_B = (jnp.full(shape.sizes.batch, one) for one in (subword, position))
    arguments: Any = (subword_B, position_B, sentence.search.memory, sentence.encoder_cache)
    found: Any = model.apply({"params": params}, *arguments, method="read")
    memory, encoder_cache = found
    return _on_mesh(model, shape, Sentence(encoder_cache, sentence.search._replace(memory=memory)))


@functools.partial(jax.jit, static_argnames=("model", "shape"), donate_argnames="sentence")
def write(
    model: EncoderDecoder,
    shape: Shape,
    params: Params,
    prepared: Any,
    sentence: Sentence,
    limit: Any,
) -> tuple[Sentence, Array]:
    """Generates one target subword; call it after `read` of the source subwords that it may use.

    Args:
      model, shape, params, sentence: as for `read`.
      prepared: the result of `prepared_output` in rows.py.
      limit: the translation's limit in subwords, EOS included, int32 scalar; until the source has
        ended, the length of the arrays.

    Returns:
      The sentence, and the subword, int32 scalar: EOS if the translation ends.
    """

    def step(now: Now, memory: Memory, cache: Cache) -> Stepped:
        arguments: Any = (now, memory, cache, prepared)
        stepped: Any = model.apply({"params": params}, *arguments, method="decode_step")
        return stepped

    rules = make_rules(shape.sizes.length, 0.0)._replace(exclusions=shape.exclusions)
    limits_B = sentence.search.limits_B.at[0].set(limit)
    search = advance(step, rules, sentence.search._replace(limits_B=limits_B))
    subword = jnp.where(is_live(search)[0], search.now.ids_BK[0, 0], EOS)
    return _on_mesh(model, shape, sentence._replace(search=search)), subword


def _on_mesh(model: EncoderDecoder, shape: Shape, sentence: Sentence) -> Sentence:
    """The arrays with the shardings of every call, so that no function is compiled twice."""
    boxed = jax.eval_shape(functools.partial(boxed_sentence, model, shape))
    layout = shardings(unboxed(boxed), names_of(boxed, (BATCH,)), shape.mesh)
    return jax.lax.with_sharding_constraint(sentence, layout)


class Interpreter:
    """Generates a translation's subwords while the source's subwords are read."""

    def __init__(self, lines: LineTranslator) -> None:
        """Takes the settings of a line translator whose model is a wait-k model."""
        translator, longest = lines.translator, lines.longest
        (self.model,) = translator.model.members
        assert self.model.config.wait_k is not None
        self.translator, self.longest, self.k = translator, longest, self.model.config.wait_k
        self.extra = translator.decode.max_extra_length
        size = self.model.longest()
        size = min(longest + self.extra, size or longest + self.extra)
        sizes = SearchSizes(batch_ways(translator.mesh), 1, size, longest)
        self.shape = Shape(translator.mesh, sizes, translator.exclusions)
        self.begin()

    def begin(self) -> None:
        """Begins another sentence."""
        self.read = 0
        self.written = 0
        self.has_ended = False
        self.sentence = self._run(begin)

    def feed(self, ids: Sequence[int] | np.ndarray, is_end: bool) -> Iterator[int]:
        """Yields the subwords that can follow these source subwords, without EOS.

        After EOS, `has_ended` is True.

        Args:
          ids: source subwords without EOS; those beyond the longest sentence are not read.
          is_end: whether the source ends after them.
        """
        for subword in ids[: self.longest - 1 - self.read]:
            self._read(subword)
            yield from self._write_until(self.read - self.k + 1, self.shape.sizes.length)
        if is_end and self.read:
            self._read(EOS)
            yield from self._write_until(self.shape.sizes.length, self.read + self.extra)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `begin`, `read` or `write` on the mesh."""
        with placed(self.shape.mesh, self.model):
            return function(self.model, self.shape, self.translator.params, *arguments)

    def _read(self, subword: int) -> None:
        if self.has_ended:
            return
        self.sentence = self._run(read, self.sentence, np.int32(subword), np.int32(self.read))
        self.read += 1

    def _write_until(self, count: int, limit: int) -> Iterator[int]:
        """Yields subwords until `count` are generated, or until EOS; `limit` as for `write`."""
        most = np.int32(min(limit, self.shape.sizes.length))
        while self.written < count and not self.has_ended:
            prepared = self.translator.prepared
            self.sentence, found = self._run(write, prepared, self.sentence, most)
            self.written += 1
            subword = int(found)
            if subword == EOS:
                self.has_ended = True
            else:
                yield subword


class LineInterpreter:
    """Translates a line while the line arrives in parts."""

    def __init__(self, lines: LineTranslator) -> None:
        """Raises ConfigError if the vocabulary cannot be used word by word, or without decode.to.

        A line that has just begun does not say into which language it is translated.
        """
        if lines.targets and lines.to is None:
            raise ConfigError("Into which language? Set decode.to (`--to`), for all lines.")
        self.lines = lines
        self.ends = word_ends(lines.vocabulary)
        self.interpreter = Interpreter(lines)
        self._begin()

    def _begin(self) -> None:
        begun = f"{self.lines.to} " if self.lines.to else ""
        self.source = ArrivingLine(self.lines.vocabulary, self.ends, begun)
        self.ids = np.array([], np.int32)
        self.text = ""

    def feed(self, text: str, is_end: bool) -> Iterator[str]:
        """Yields how the translation continues, in pieces; after a line's end, the next begins.

        Args:
          text: the next part of the line.
          is_end: whether the line ends after it.

        Raises:
          DataError: see `ArrivingLine.add`.
        """
        for subword in self.interpreter.feed(self.source.add(text, is_end), is_end):
            self.ids = np.append(self.ids, subword)
            yield from self._more(self.lines.text(self.ids).rstrip(REPLACEMENT))
        if is_end:
            # Before the end, bytes that are not a whole character may become one with later bytes.
            yield from self._more(self.lines.text(self.ids))
            count = len(self.source.given)
            self.lines.cut += count >= self.lines.longest
            self.lines.empty += count > 0 and not self.text.strip()
            self.interpreter.begin()
            self._begin()

    def _more(self, text: str) -> Iterator[str]:
        """The part of the text that was not yielded yet, if there is one."""
        assert text.startswith(self.text), "text that was yielded never changes"
        if more := text[len(self.text) :]:
            self.text = text
            yield more
