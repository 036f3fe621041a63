"""The `score` command: scores of given translations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.text.corpora import TextPairs
from transformer_jax.text.documents import InContext
from transformer_jax.text.lines import TextLines
from transformer_jax.use.loading import NO_OVERRIDES, load_model

LINES = 8_192  # read and scored together


def score(
    workdir: str | Sequence[str],
    *,
    tgt: str,
    src: str | None = None,
    checkpoint: str = "latest",
    length_penalty: float | None = None,
    coverage_penalty: float | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Prints "SCORE<tab>LOG_PROBABILITY<tab>SUBWORDS" for each pair of lines.

    The score is what search reports for these subwords: the log probability (nats, summed over the
    subwords, EOS included) over the length penalty, plus the coverage penalty if there is one. A
    blank source has only a blank translation, with score 0; any other has the score -inf.

    Args:
      workdir: the run's folder; several: an ensemble of their models.
      tgt: a file of translations.
      src: a file of their sources; None: of a language model, whose texts have none.
      checkpoint: "latest", "best", "average", a step, or an average's name.
      length_penalty: None: the run's.
      coverage_penalty: None: the run's.
      overrides: keys of `decode` and their values; the arguments above win.

    Raises:
      UserError: there is no such run, checkpoint or file, or the files differ in length.
    """
    pairs = TextPairs(*(TextLines(Path(file)) for file in (src, tgt) if file is not None))
    loaded = load_model(workdir, checkpoint, None, length_penalty, 1, coverage_penalty, overrides)
    if src is None and loaded.translator.model.sources:
        raise ConfigError("--src=FILE is missing: the sources of the translations in --tgt.")
    lines = loaded.line_translator()
    add_context = InContext(loaded.config.data.context)
    for start in range(0, len(pairs), LINES):
        part = [pairs[i] for i in range(start, min(start + LINES, len(pairs)))]
        for found in lines.score(
            [add_context(pair.src) for pair in part], [pair.tgt for pair in part]
        ):
            print(f"{found.score:.6f}\t{found.log_prob:.6f}\t{found.length}")
    lines.warn_of_cut()
