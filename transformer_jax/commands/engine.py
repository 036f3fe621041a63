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

from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.decoding.translator import Hypothesis, Translator
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.interop.ctranslate2_out import QUANTIZATIONS, write_ctranslate2
from transformer_jax.interop.exported import Exported
from transformer_jax.parallel import processes
from transformer_jax.text.vocabulary import EOS
from transformer_jax.use.loading import LoadedModel

ENGINES = "ctranslate2, ctranslate2:int8 or another of its types"
GPU = ("gpu", "cuda")


class EngineTranslator(Translator):
    """Searches by CTranslate2, with the settings and the vocabulary of a run."""

    def __init__(self, loaded: LoadedModel, engine: Any, search: dict[str, Any]) -> None:
        """Takes the run, the engine, and the arguments of its search."""
        own = loaded.translator
        self.model, self.decode, self.n_best = own.model, own.decode, own.n_best
        self.vocabulary, self.engine, self.search = loaded.vocabulary, engine, search

    def translate(self, sentences: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """The n_best best translations of each sentence, without their log probabilities."""
        return [
            [
                Hypothesis(self._ids(pieces), score, math.nan)
                for pieces, score in zip(found.hypotheses, found.scores, strict=True)
            ]
            for found in self._found(sentences)
        ]

    def _ids(self, pieces: Sequence[str]) -> np.ndarray:
        ids = self.vocabulary.target.ids_of(pieces)
        return np.array([*(ids[piece] for piece in pieces), EOS], np.int32)

    def _found(self, sentences: Sequence[np.ndarray]) -> list[Any]:
        """The engine's result for each sentence, with the limit of length that our search has."""
        if not sentences:
            return []
        pieces = [self.vocabulary.pieces(ids[:-1]) for ids in sentences]  # it adds EOS
        extra = self.decode.max_extra_length - 1  # the engine does not count EOS
        limits = [len(ids) + extra for ids in sentences]
        # A batch has one limit. The few translations that exceed their own are searched again.
        found = self.engine.translate_batch(pieces, max_decoding_length=max(limits), **self.search)
        for k, limit in enumerate(limits):
            if any(len(hypothesis) > limit for hypothesis in found[k].hypotheses):
                [found[k]] = self.engine.translate_batch(
                    [pieces[k]], max_decoding_length=limit, **self.search
                )
        return list(found)


def engine_lines(loaded: LoadedModel, engine: str) -> LineTranslator:
    """Translates lines by the engine, with the run's model and settings of search.

    The engine divides log probabilities by length^alpha, whatever decode.penalty is.

    Args:
      engine: "ctranslate2", or "ctranslate2:TYPE" with the type of its weights, such as int8.

    Raises:
      UserError: the package is not installed, or the engine cannot express the model or a
        setting of search.
    """
    loaded.reading_text("--engine").one_by_one("--engine")
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
        "max_input_length": 0,  # our limit of length cuts, with a warning
        "return_scores": True,
        "batch_type": "tokens",
        "max_batch_size": decode.tokens_per_batch,
    }
    engine_translator = EngineTranslator(loaded, opened, search)
    return LineTranslator(loaded.vocabulary, engine_translator, loaded.config.data.targets)


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
