"""Computes the metrics of a run from the state's sums over the last steps."""

import contextlib
import math
import time
from collections.abc import Iterator

import jax

from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import RunError
from transformer_jax.model.outputs.objectives import loss_weights
from transformer_jax.training import cost
from transformer_jax.training.data import TrainingData
from transformer_jax.training.optimizer import learning_rate_schedule
from transformer_jax.training.program import Program
from transformer_jax.training.state import AGREEMENT, TrainState, Window


class WindowReader:
    """Converts the state's window into metrics. It waits for the device, as validation does.

    The first window of a continued run began in an earlier process. The time of its first steps is
    unknown, so rates count only the tokens of this process.
    """

    def __init__(
        self, train: TrainConfig, data: TrainingData, program: Program, window: Window
    ) -> None:
        model = program.model.config
        self.train, self.data = train, data
        self.auxiliary = loss_weights(train)
        # Whether target tokens are all that the batch has, or only those that are masked.
        self.counts_all = model.parallel != "mask_predict"
        self.schedule = learning_rate_schedule(train, model.d_model)
        peak = cost.device_peak(model.dtype)
        self.peak = peak * program.mesh.devices.size if peak else None  # FLOP/s of all devices
        if self.peak:  # the count traces the model, which takes a second
            pairs = len(data.plan.pair_order)
            mean_lengths = round(data.plan.src_tokens / pairs), round(data.plan.tgt_tokens / pairs)
            flops = cost.step_flops(model, data.vocabulary.sizes, mean_lengths, train)
            self.flops_per_token = flops / mean_lengths[1]  # per target token, the source included
        self.before = _tokens(jax.device_get(window))
        self.start = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose time does not count in the rates, such as that of validation."""
        begin = time.perf_counter()
        yield
        self.start += time.perf_counter() - begin

    def __call__(self, state: TrainState) -> dict[str, float]:
        """The metrics since the last call, by name with units.

        Raises:
          RunError: too many updates in a row were not finite.
        """
        counters = (state.step, state.skipped, state.skipped_in_a_row)
        sums = (state.window, state.auxiliary)
        (window, auxiliary), (step, skipped, in_a_row) = jax.device_get((sums, counters))
        seconds = time.perf_counter() - self.start
        before = self.before
        self.start = time.perf_counter()
        self.before = (0.0, 0.0)
        src_tokens, tgt_tokens = (
            now - then for now, then in zip(_tokens(window), before, strict=True)
        )
        if in_a_row >= self.train.max_skipped:
            raise RunError(
                f"the last {in_a_row} updates up to step {step} were not finite (train.max_skipped="
                f"{self.train.max_skipped}): training diverged. Start a new run with a lower "
                "train.peak_learning_rate, more train.warmup_steps or train.clip_norm."
            )
        # If every step was skipped, there is nothing to average, so the metrics are NaN, not 0.
        tokens, steps, slots = (
            float(x) or math.nan for x in (window.tgt_tokens, window.steps, window.slots)
        )
        nats = float(window.nats) / tokens
        values = {
            "epoch": int(step) / self.data.steps_per_epoch,
            "smoothed_nats_per_token": float(window.smoothed_nats) / tokens,
            "nats_per_token": nats,
            "perplexity": perplexity(nats),
            "token_accuracy": float(window.correct) / tokens,
            "learning_rate": float(self.schedule(max(int(step - skipped) - 1, 0))),
            "grad_norm": float(window.grad_norm) / steps,
            "target_tokens_per_step": float(window.tgt_tokens) / steps,
            "skipped_updates": int(skipped),
            "source_tokens_per_second": src_tokens / seconds,
            "target_tokens_per_second": tgt_tokens / seconds,
        }
        if self.counts_all:
            real = float(window.tgt_tokens + window.src_tokens)
            values["padding_share"] = 1 - real / slots
        for name, weight in self.auxiliary.items():
            values[f"{name}_loss_per_token"] = float(auxiliary[name]) / weight / tokens
        if self.train.agreement_weight is not None:
            values["agreement_per_token"] = float(auxiliary[AGREEMENT]) / tokens
        if self.peak and self.counts_all:
            values["mfu"] = self.flops_per_token * values["target_tokens_per_second"] / self.peak
        return values


def perplexity(nats_per_token: float) -> float:
    """exp(nats_per_token), at most exp(700), because float64 overflows near exp(709)."""
    return math.exp(min(nats_per_token, 700.0))


def _tokens(window: Window) -> tuple[float, float]:
    """The sums of source and of target tokens."""
    return float(window.src_tokens), float(window.tgt_tokens)
