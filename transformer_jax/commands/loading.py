"""A run's model, loaded for translation and analysis."""

import copy
import logging
import numbers
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.compilation import keep_compiled_programs
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.schema import Config, DecodeConfig
from transformer_jax.decoding.lines import LineTranslator, banned_ids
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params, axis_names
from transformer_jax.parallel.mesh import decoding_mesh, with_shardings
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.vocabulary import Vocabulary, load_vocabulary

NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
log = logging.getLogger(__name__)


class LoadedModel(NamedTuple):
    """A run's model, ready to translate."""

    config: Config  # the run's, with the overrides
    vocabulary: Vocabulary
    translator: Translator  # holds the model and its parameters
    checkpoint: str  # its name, such as "40" or "40-last5"

    def line_translator(self, n_best: int | None = None) -> LineTranslator:
        """A new translator of text lines, whose count of cut lines is zero.

        Args:
          n_best: hypotheses per sentence; None: as loaded.
        """
        translator = self.translator
        if n_best is not None:
            check_n_best(n_best, self.config.decode)
            translator = copy.copy(translator)  # shares the parameters
            translator.n_best = n_best
        return LineTranslator(self.vocabulary, translator)


def load_model(
    workdir: str,
    checkpoint: str = "latest",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    n_best: int = 1,
    coverage_penalty: float | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> LoadedModel:
    """Loads the model of a run's folder.

    Args:
      workdir: the run's folder.
      checkpoint: "latest", "best", "average", a step, or an average's name, such as "40-last5".
      beam_size: None: the run's.
      length_penalty: None: the run's.
      coverage_penalty: None: the run's.
      n_best: hypotheses per sentence, at most the beam size.
      overrides: dotted keys and their values, in place of the run's; the arguments above win.

    Raises:
      UserError: the folder has no run or no such checkpoint, or a setting is out of range.
    """
    run = RunFolder(workdir)
    config = run.read_config()
    given = {
        "decode.beam_size": beam_size,
        "decode.length_penalty": length_penalty,
        "decode.coverage_penalty": coverage_penalty,
    }
    given = {name: value for name, value in given.items() if value is not None}
    config = with_values(config, {**overrides, **given})
    check(config)
    check_n_best(n_best, config.decode)
    keep_compiled_programs()
    vocabulary, mesh = load_vocabulary(run.vocabulary_file), decoding_mesh(config.mesh)
    model = make_model(config.model, vocabulary.size)
    like = with_shardings(abstract_params(model), axis_names(model), mesh)
    params, name = load_params(run, checkpoint, like)
    log.info("%s, checkpoint %s, beam %d", run.path, name, config.decode.beam_size)
    translator = Translator(
        model, params, config.decode, mesh, n_best, banned_ids(config.decode, vocabulary)
    )
    return LoadedModel(config, vocabulary, translator, name)


def check_n_best(n_best: int, decode: DecodeConfig) -> None:
    """Raises ConfigError if a search does not find that many translations."""
    if not isinstance(n_best, numbers.Integral):
        raise ConfigError(f"n_best={n_best!r} is no whole number.")
    if n_best < 1:
        raise ConfigError(f"--n_best={n_best} is below 1: ask for at least 1 translation per line.")
    if n_best > decode.beam_size:
        raise ConfigError(
            f"--n_best={n_best} is not in 1..{decode.beam_size}: a beam of "
            f"{decode.beam_size} finds no more. Raise --beam_size."
        )
