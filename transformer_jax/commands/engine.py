"""Translation by a deployed engine: a run's model in CTranslate2, with the run's vocabulary."""

import contextlib
import io
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.decoding.lines import LineTranslator, Translation
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.interop.ctranslate2_out import QUANTIZATIONS, write_ctranslate2
from transformer_jax.interop.exported import Exported
from transformer_jax.parallel import processes
from transformer_jax.use.loading import LoadedModel

ENGINES = "ctranslate2, ctranslate2:int8 or another of its types"
GPU = ("gpu", "cuda")


class EngineLines:
    """Translates text lines as `LineTranslator` does, but by CTranslate2."""

    def __init__(self, lines: LineTranslator, engine: Any, search: dict[str, Any]) -> None:
        """Takes a line translator for its subwords, an engine, and the arguments of its search."""
        self.lines, self.engine, self.search = lines, engine, search

    def shared(self, group: Sequence[str]) -> list[list[Translation]]:
        """The translations of each line, best first; a blank line has an empty one with score 0."""
        sentences = self.lines.encode(group)
        lines = self.lines
        filled = [i for i, ids in enumerate(sentences) if len(ids)]
        results = [[Translation("", 0.0)] for _ in group]
        if not filled:
            return results
        found = self._translated([sentences[i] for i in filled])
        for i, result in zip(filled, found, strict=True):
            ids = [lines.vocabulary.target.ids_of(pieces) for pieces in result.hypotheses]
            texts = [
                lines.text(np.array([own[piece] for piece in pieces], np.int32))
                for own, pieces in zip(ids, result.hypotheses, strict=True)
            ]
            translations = map(Translation, texts, result.scores)
            results[i] = list(translations) or [Translation("", -math.inf)]
        return results

    def _translated(self, sentences: Sequence[np.ndarray]) -> list[Any]:
        """The engine's result for each sentence, with the limit of length that our search has."""
        pieces = [self.lines.vocabulary.pieces(ids[:-1]) for ids in sentences]  # it adds EOS
        extra = self.lines.translator.decode.max_extra_length
        limits = [len(ids) + extra - 1 for ids in sentences]  # the engine does not count EOS
        # A batch has one limit. The few translations that exceed their own are searched again.
        found = self.engine.translate_batch(pieces, max_decoding_length=max(limits), **self.search)
        for k, limit in enumerate(limits):
            if any(len(hypothesis) > limit for hypothesis in found[k].hypotheses):
                [found[k]] = self.engine.translate_batch(
                    [pieces[k]], max_decoding_length=limit, **self.search
                )
        return list(found)

    def warn_of_cut(self) -> None:
        """Logs one warning with the number of cut lines."""
        self.lines.warn_of_cut()


def engine_lines(loaded: LoadedModel, engine: str) -> EngineLines:
    """The engine with the run's model and settings of search.

    It divides log probabilities by length^alpha, whatever decode.penalty is.

    Args:
      loaded: the run.
      engine: "ctranslate2", or "ctranslate2:TYPE" with the type of its weights, such as int8.

    Raises:
      UserError: the package is not installed, or the engine cannot express the model or a
        setting of search.
    """
    name, _, quantization = engine.partition(":")
    decode, translator = loaded.config.decode, loaded.translator
    if name != "ctranslate2":
        raise ConfigError(f"--engine={engine} is unknown; there is {ENGINES}.")
    if quantization not in ("", *QUANTIZATIONS):
        raise ConfigError(f"--engine={engine}: its types are {', '.join(QUANTIZATIONS)}.")
    if decode.method != "beam" or decode.coverage_penalty or decode.groups > 1:
        raise ConfigError(
            f"--engine={engine} has beam search only, in one group and without a coverage penalty: "
            "leave out --sample, decode.method, decode.coverage_penalty and decode.groups."
        )
    if decode.dtype or decode.weights:
        raise ConfigError(
            f"--engine={engine} does not read decode.dtype and decode.weights: give "
            "--config.decode.dtype=none --config.decode.weights=none. The type of the engine's "
            "weights follows its name, as in --engine=ctranslate2:int8."
        )
    if processes.count() > 1:
        raise ConfigError(f"--engine={engine} runs in one process: leave out --coordinator.")
    if len(translator.model.members) > 1:
        raise ConfigError(f"--engine={engine} has one model: give one --workdir.")
    params = jax.tree.map(np.asarray, translator.params)
    exported = Exported(loaded.config, params, loaded.vocabulary, translator.exclusions.banned)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        with contextlib.redirect_stdout(io.StringIO()):  # standard output is for translations
            write_ctranslate2(exported, path, quantization or None)
        opened = _opened(path, quantization)
    search = {
        "beam_size": decode.beam_size,
        "num_hypotheses": translator.n_best,
        "length_penalty": decode.length_penalty,
        "suppress_sequences": [[piece] for piece in decode.banned_subwords],
        "min_decoding_length": decode.min_length,
        "no_repeat_ngram_size": decode.no_repeat,
        "return_scores": True,
        "batch_type": "tokens",
        "max_batch_size": decode.tokens_per_batch,
    }
    return EngineLines(loaded.line_translator(), opened, search)


def _opened(path: Path, quantization: str) -> Any:
    """The engine, which reads the whole folder into memory."""
    import ctranslate2

    on_gpu = jax.default_backend() in GPU and ctranslate2.get_cuda_device_count() > 0
    try:
        return ctranslate2.Translator(
            str(path),
            device="cuda" if on_gpu else "cpu",
            compute_type=quantization or "float32",
            intra_threads=len(os.sched_getaffinity(0)),
        )
    except ValueError as error:  # a type that the device does not have
        raise UserError(f"CTranslate2: {error}") from None
