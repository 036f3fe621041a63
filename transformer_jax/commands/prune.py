"""The `prune` command: a smaller run without the attention heads that matter least."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.commands.import_model import write_run
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.head_importance import attentions, gated, importance, with_heads
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.sides.transformer import watched_layer
from transformer_jax.runs.run_folder import PRUNED, RunFolder
from transformer_jax.text.by_position import evenly_spaced
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model, pairs_of_split

log = logging.getLogger(__name__)
PAIRS = 500  # of the validation split, by which heads are chosen
COMPARED = 8  # pairs whose scores must not change when closed gates are cut out
SAME = 1e-3  # nats

Sides = tuple[list[np.ndarray], list[np.ndarray]]


def prune(
    workdir: str,
    output: str,
    *,
    heads: float,
    by: str = "importance",
    seed: int | None = None,
    checkpoint: str = "latest",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Writes a run without a share of the heads of each attention; it translates as any other.

    Another run can start from its weights (train.init_from), to learn to do without them.

    Args:
      output: the new run's folder, which must be empty or not exist.
      heads: the share of each attention's heads that goes, above 0 and below 1; at least one head
        goes, and one stays. Of the watched layer, the watched heads stay (model.watched_heads).
      by: "importance" (Michel et al. 2019, on the validation split) or "random", the control.
      seed: of the random choice; None: 0.
      workdir, checkpoint: see `load_model`.
      overrides: keys of `data` and their values: where the validation split is.

    Raises:
      UserError: there is no run or no text, a flag is out of range, the folder is taken, or the
        model's heads are not independent of each other.
    """
    if not 0 < heads < 1:
        raise ConfigError(f"--heads={heads:g} is not between 0 and 1: name the share that goes.")
    if by not in ("importance", "random"):
        raise ConfigError(f"--by={by}: choose importance or random.")
    if seed is not None and (by != "random" or seed < 0):
        wrong = "is below 0" if seed < 0 else "changes nothing without --by=random"
        raise ConfigError(f"--seed={seed} {wrong}.")
    run = RunFolder(output, "--output")
    run.check_new()
    own = RunFolder(workdir)
    wide = {"decode.weights": None, **overrides}  # the new run gets the weights as they are
    loaded = load_model(workdir, checkpoint, overrides=wide).one_by_one("prune")
    weights = {"decode.weights": own.read_config().decode.weights}
    config = _smaller(with_values(loaded.config, weights), heads)
    run.check(config)
    names = attentions(loaded.model)
    if not names:
        raise ConfigError(f"{workdir} has no attention with heads.")
    sides = _sides(loaded, own)
    if by == "random":
        draw = np.random.default_rng(seed or 0)
        scores = {name: draw.random(loaded.config.model.num_heads) for name in names}
    else:
        scores = importance(loaded.model, loaded.translator.params, *sides)
        for name, own_scores in scores.items():
            shown = " ".join(f"{x:.3g}" for x in own_scores)
            log.info("importance of the heads of %s: %s", name, shown)
    count = config.model.num_heads
    kept = kept_heads(scores, loaded.config.model, count)
    params = checked(loaded, config, kept, sides)
    texts = own.fingerprints()[:2]
    write_run(run, config, loaded.vocabulary, jax.device_get(params), PRUNED, texts=texts)
    log.info("%s: %d of %d heads", run.path, count, loaded.config.model.num_heads)


def kept_heads(
    scores: Mapping[str, np.ndarray], config: ModelConfig, count: int
) -> dict[str, np.ndarray]:
    """The numbers of the best `count` heads of each attention, ascending; watched ones stay."""
    watched = {f"decoder_{watched_layer(config)}/cross_attention": config.watched_heads or 0}
    ranks = {
        name: np.where(np.arange(len(own)) < watched.get(name, 0), np.inf, own)
        for name, own in scores.items()
    }
    return {name: np.sort(np.argsort(-own)[:count]) for name, own in ranks.items()}


def _smaller(config: Config, share: float) -> Config:
    """The config without this share of the heads, each as wide as before."""
    own = config.model
    gone = min(max(1, round(share * own.num_heads)), own.num_heads - 1)
    if gone < 1:
        raise ConfigError(f"model.num_heads={own.num_heads}: there is no head to spare.")
    d_k, d_v = own.head_sizes
    values = {"model.num_heads": own.num_heads - gone, "model.d_k": d_k, "model.d_v": d_v}
    smaller = with_values(config, values)
    try:
        check(smaller)
    except ConfigError as error:
        raise ConfigError(f"with {own.num_heads - gone} heads: {error}") from None
    return smaller


def _sides(loaded: LoadedModel, run: RunFolder) -> Sides:
    """Both sides of pairs from all over the validation split, as subwords."""
    split = pairs_of_split(loaded.config, "valid", run)
    pairs = [split[i] for i in evenly_spaced(len(split), PAIRS)]
    lines = loaded.line_translator(folder=loaded.config.data.path)
    src, tgt = lines.encode_pairs(pairs)
    filled = [i for i in range(len(pairs)) if len(src[i]) and len(tgt[i])]
    if not filled:
        raise DataError(
            "No pair of the validation text that heads are judged by has words on both sides: name "
            "other text with --config.data.path=FOLDER or --config.data.valid=STEM."
        )
    return [src[i] for i in filled], [tgt[i] for i in filled]


def checked(
    loaded: LoadedModel, config: Config, kept: dict[str, np.ndarray], sides: Sides
) -> object:
    """The parameters that are left, with which scores are those of closed gates.

    Raises:
      ConfigError: they are not: the model has parts that join heads, or that depend on their
        number.
    """
    model, old = make_model(config.model, loaded.vocabulary.sizes), loaded.translator
    params = with_heads(loaded.model, old.params, kept)
    same = jax.tree.map(np.shape, params) == jax.tree.map(np.shape, abstract_params(model))
    if same:
        number = loaded.model.config.num_heads
        gates = {name: np.isin(np.arange(number), own) for name, own in kept.items()}
        closed = Translator(loaded.model, gated(old.params, gates), old.decode, old.mesh)
        cut = Translator(model, params, old.decode, old.mesh)
        some: Sequence[list[np.ndarray]] = [side[:COMPARED] for side in sides]
        scores = [[one.log_prob for one in forced_scores(x, *some)] for x in (closed, cut)]
        same = np.allclose(scores[0], scores[1], atol=SAME, rtol=SAME)
    if not same:
        raise ConfigError(
            "this model's heads are not independent: a part joins them, or depends on their "
            "number (see model.positions, model.normalizer, model.num_key_heads)."
        )
    return params
