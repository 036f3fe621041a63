"""The `train` command: puts the parts together, and the host's loop over steps."""

import contextlib
import dataclasses
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax
from jax.sharding import Mesh

from transformer_jax.compilation import keep_compiled_programs
from transformer_jax.config.checks import check
from transformer_jax.config.schema import Config, TrainConfig, free_differences, with_absolute_paths
from transformer_jax.decoding.lines import LineTranslator, longest_source
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import Interrupted, RunError
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import decoding_mesh, local, make_mesh, own_rows, put_rows
from transformer_jax.runs.checkpoints import Checkpoints, committed_steps
from transformer_jax.runs.metrics import (
    FILE,
    Reports,
    check_metrics,
    open_reports,
    read_metrics,
)
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.batches import Batch, train_batches
from transformer_jax.training import cost
from transformer_jax.training.data import NOMINAL_FILL, TrainingData, load_data, nominal_shape
from transformer_jax.training.optimizer import learning_rate_schedule
from transformer_jax.training.program import (
    Program,
    check_rows,
    compile_program,
    describe,
    shardings_of,
)
from transformer_jax.training.state import Params, TrainState, Window
from transformer_jax.training.stopping import StopRequest
from transformer_jax.training.validation import make_validate

log = logging.getLogger(__name__)

BLEU_LINES = 1_024  # translated between two looks at whether to stop


def train(config: Config, workdir: str, dry_run: bool = False) -> None:
    """Trains a run, or goes on with it; a dry run prints what it would be and stops.

    Of several processes (processes.py) all call it; the first writes and reports.

    Raises:
      UserError: a config, corpus or folder that cannot be; see the message.
      Interrupted: SIGTERM or SIGINT came, and a checkpoint is written.
    """
    check(config)
    keep_compiled_programs()
    mesh = make_mesh(config.mesh)
    if dry_run:
        run = RunFolder(workdir)
        if run.config_file.exists():
            processes.first_does(lambda: run.check(config, lock=False))
        shape = nominal_shape(config)
        check_rows(config, mesh, shape.rows)
        size = config.vocabulary.size
        program = compile_program(config, mesh, size, shape)
        print("\n".join(describe(config, program, size, shape, NOMINAL_FILL)))
        return
    run = RunFolder(workdir)
    try:
        config = with_absolute_paths(config)
        processes.first_does(lambda: _check_folder(run, config))
        _train_in(run, config, mesh)
    finally:
        run.unlock()


def _train_in(run: RunFolder, config: Config, mesh: Mesh) -> None:
    data = load_data(config, run)
    check_rows(config, mesh, data.shape.rows)
    program = compile_program(config, mesh, data.vocabulary.size, data.shape)
    for line in describe(config, program, data.vocabulary.size, data.shape, data.plan.tgt_fill):
        log.info(line)
    train = config.train
    checkpoints = Checkpoints(run.checkpoints, train.keep_last, train.on_save_error)
    try:
        state = _start(config, program, checkpoints)
        processes.first_does(lambda: _claim(run, config, data))
        with StopRequest() as stop:
            _train_from(state, config, run, data, program, checkpoints, stop)
    except BaseException:
        checkpoints.abandon()
        raise
    checkpoints.close()
    if stop.signal:
        processes.part()
        raise Interrupted(
            stop.signal,
            f"{signal.Signals(stop.signal).name}: stopped, with a checkpoint at step "
            f"{committed_steps(run.checkpoints)[-1]}; the same command goes on from there.",
        )
    log.info("trained to step %d", train.steps)


def _check_folder(run: RunFolder, config: Config) -> None:
    run.check(config)
    check_metrics(run.path)


def _claim(run: RunFolder, config: Config, data: TrainingData) -> None:
    if run.config_file.exists():
        for difference in free_differences(run.read_config(), config):
            log.info("from here on, %s", difference)
    run.claim(config, data.fingerprint)
    if not run.vocabulary_file.exists():
        data.vocabulary.save(run.vocabulary_file)


def _start(config: Config, program: Program, checkpoints: Checkpoints) -> TrainState:
    """The newest checkpoint's state, or the first one."""
    state = checkpoints.restore_latest(program.state)
    if state is not None:
        log.info("going on from step %d", int(state.step))
        return state
    state = program.init(config)
    if config.train.init_from is not None:
        origin = RunFolder(config.train.init_from)
        params, name = load_params(origin, "latest", program.state.params)
        log.info("starting from the weights of %s, checkpoint %s", origin.path, name)
        state = state._replace(params=params)
    return state


def _train_from(
    state: TrainState,
    config: Config,
    run: RunFolder,
    data: TrainingData,
    program: Program,
    checkpoints: Checkpoints,
    stop: StopRequest,
) -> None:
    """The host's loop over steps, up to the last one or a request to stop."""
    train, first, rows = config.train, int(state.step), data.shape.rows
    owes_validation = processes.first_does(lambda: _owes_validation(run, first, train))
    if first >= train.steps and not owes_validation:
        log.info("nothing to do: trained to step %d of train.steps=%d", first, train.steps)
        return
    bleu = _make_bleu(config, data, program, stop) if train.valid_bleu else None
    validate = make_validate(data, program, bleu)
    read_window = WindowReader(config, data, program, state.window)
    own = own_rows(program.mesh, rows)
    batches = train_batches(
        data.train,
        data.plan,
        rows,
        config.seed,
        start_batch=first,
        num_workers=train.data_workers,
        own_rows=own,
    )
    with contextlib.closing(batches), _reports(run, train.steps, first) as reports:

        def validation(step: int) -> float | None:
            with read_window.paused():
                result = validate(state.params)
            if result is None:
                return None
            reports.validated(step, result[0])
            return result[1]

        if owes_validation:
            validation(first)
        for step, batch in _counted(batches, first + 1, train.steps):
            if step == first + 2:  # once, so that whoever waits knows that it runs, and how fast
                jax.block_until_ready(state.step)
                log.info("step %d taken; metrics follow every %d", first + 1, train.log_every)
            state = program.train_step(state, put_rows(program.mesh, rows, own, batch))
            last = step == train.steps
            score = None
            if step % train.log_every == 0 or last:
                values = read_window(state)
                state = state._replace(window=_zero_like(state.window))
                reports.trained(step, values)
                checkpoints.check()
            if step % train.valid_every == 0 or last:
                score = validation(step)
            stopping = stop.at_step(step)
            if step % train.checkpoint_every == 0 or last or stopping:
                checkpoints.save(state, step, score)
            if stopping and not last:
                return


def _owes_validation(run: RunFolder, step: int, train: TrainConfig) -> bool:
    """Whether the run was asked to stop before it could validate at this step."""
    due = step > 0 and (step % train.valid_every == 0 or step == train.steps)
    if not due or not (run.path / FILE).exists():
        return False
    records = read_metrics(run.path)
    return not any(record["kind"] == "valid" and record["step"] == step for record in records)


def _counted(batches: Iterator[Batch], first: int, last: int) -> Iterator[tuple[int, Batch]]:
    """(step, batch) up to the last step; reads no batch beyond it."""
    for step in range(first, last + 1):
        yield step, next(batches)


def _zero_like(window: Window) -> Window:
    return jax.device_put(Window.zero(), shardings_of(window))


def _reports(run: RunFolder, total: int, first: int) -> AbstractContextManager[Reports]:
    return open_reports(run.path, total, first, silent=not processes.is_first())


def _make_bleu(
    config: Config, data: TrainingData, program: Program, stop: StopRequest
) -> Callable[[Params], float | None]:
    """Parameters to the validation split's sacreBLEU, by greedy search; None when told to stop."""
    from transformer_jax.evaluation.bleu import score  # takes 0.3 s, and few runs ask for it

    pairs, mesh = data.corpus.split("valid"), decoding_mesh(config.mesh)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    greedy = dataclasses.replace(config.decode, beam_size=1)
    longest = longest_source(config.model, greedy)

    def bleu(params: Params) -> float | None:
        own = local(program.replicated(params), mesh)
        translator = Translator(program.model, own, greedy, mesh)
        lines = LineTranslator(data.vocabulary, translator, longest)
        hypotheses: list[str] = []
        for start in range(0, len(sources), BLEU_LINES):
            if stop.signal:
                return None
            part = lines.shared(sources[start : start + BLEU_LINES])
            hypotheses += [best.text for best, *_ in part]
        return score(hypotheses, references, config.data.src, config.data.tgt).bleu

    return bleu


class WindowReader:
    """Turns the state's window into metrics; reading it is where the loop waits for the device.

    A resumed run's first window began before this process: its tokens count, its time is unknown,
    so that rates are of the tokens since.
    """

    def __init__(
        self, config: Config, data: TrainingData, program: Program, window: Window
    ) -> None:
        self.config = config
        self.schedule = learning_rate_schedule(config.train, config.model.d_model)
        pairs = len(data.plan.pair_order)
        mean_lengths = round(data.plan.src_tokens / pairs), round(data.plan.tgt_tokens / pairs)
        flops = cost.training_flops(config.model, data.vocabulary.size, *mean_lengths)
        self.flops_per_token = flops / mean_lengths[1]  # of one target token, its source included
        peak = cost.device_peak(config.model.dtype)
        self.peak = peak * program.mesh.devices.size if peak else None
        self.before = self._tokens(jax.device_get(window))
        self.start = time.perf_counter()

    @staticmethod
    def _tokens(window: Window) -> tuple[float, float]:
        return float(window.src_tokens), float(window.tgt_tokens)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The time within does not count: validation is not training."""
        begin = time.perf_counter()
        yield
        self.start += time.perf_counter() - begin

    def __call__(self, state: TrainState) -> dict[str, float]:
        """The metrics since the last call, by name with units.

        Raises:
          RunError: too many updates in a row were not finite.
        """
        counters = (state.window, state.step, state.skipped, state.skipped_in_a_row)
        window, step, skipped, in_a_row = jax.device_get(counters)
        seconds, before = time.perf_counter() - self.start, self.before
        self.start, self.before = time.perf_counter(), (0.0, 0.0)
        src_tokens, tgt_tokens = (
            now - then for now, then in zip(self._tokens(window), before, strict=True)
        )
        if in_a_row >= self.config.train.max_skipped:
            raise RunError(
                f"the last {in_a_row} updates up to step {step} were not finite (train.max_skipped="
                f"{self.config.train.max_skipped}): training diverged. Start anew, with a lower "
                "train.peak_learning_rate, more train.warmup_steps or train.clip_norm."
            )
        # Where every step was skipped there is nothing to average: not a number, not 0.
        tokens, steps, slots = (
            float(x) or math.nan for x in (window.tgt_tokens, window.steps, window.slots)
        )
        nats = float(window.nats) / tokens
        values = {
            "smoothed_nats_per_token": float(window.smoothed_nats) / tokens,
            "nats_per_token": nats,
            "perplexity": math.exp(min(nats, 700.0)),
            "token_accuracy": float(window.correct) / tokens,
            "learning_rate": float(self.schedule(max(int(step - skipped) - 1, 0))),
            "grad_norm": float(window.grad_norm) / steps,
            "target_tokens_per_step": float(window.tgt_tokens) / steps,
            "padding_share": 1 - float(window.tgt_tokens + window.src_tokens) / slots,
            "skipped_updates": int(skipped),
            "source_tokens_per_second": src_tokens / seconds,
            "target_tokens_per_second": tgt_tokens / seconds,
        }
        if self.peak:
            values["mfu"] = self.flops_per_token * values["target_tokens_per_second"] / self.peak
        return values
