"""The `train` command: trains a run, or continues it."""

import contextlib
import dataclasses
import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence

from jax.sharding import Mesh

from transformer_jax import allocator
from transformer_jax.compilation import keep_compiled_programs
from transformer_jax.config.changes import (
    PATHS,
    mutable_differences,
    of_other_direction,
    with_absolute_paths,
)
from transformer_jax.config.checks import check
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.lines import LineTranslator, banned_ids
from transformer_jax.decoding.parallel import translator_for
from transformer_jax.errors import ConfigError, DataError, Interrupted, RunError
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import axis_names
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import decoding_mesh, local, make_mesh
from transformer_jax.runs.checkpoints import Checkpoints, committed_steps
from transformer_jax.runs.metrics import FILE, check_metrics, clock
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.together import restore_newest
from transformer_jax.runs.weights_and_biases import import_wandb
from transformer_jax.text.features import FeatureReader
from transformer_jax.text.vocabulary import both_sides, load_vocabulary
from transformer_jax.training.cost import step_flops
from transformer_jax.training.data import NOMINAL_FILL, TrainingData, load_data, nominal_shape
from transformer_jax.training.loop import Direction, train_steps
from transformer_jax.training.program import Program, check_rows, compile_program
from transformer_jax.training.state import States
from transformer_jax.training.stopping import StopRequest
from transformer_jax.training.timing import measure
from transformer_jax.training.vocabulary import given_vocabulary
from transformer_jax.use.description import check_bytes, check_sizes, describe
from transformer_jax.use.origin import initial_state, with_origin, with_teacher

log = logging.getLogger(__name__)

# Keys of the search that scores validation; the others are its own.
SEARCHED = {name for name in KEYS if name.startswith("decode.")}
SEARCHED -= {"decode.method", "decode.beam_size", "decode.groups", "decode.tokens_per_batch"}
BLEU_LINES = 1_024  # lines translated between two checks for a signal to stop


def train(config: Config, workdir: str, dry_run: bool = False, force: bool = False) -> None:
    """Trains a run, or continues it; a dry run prints what would be trained and stops.

    Every process of a run calls it (parallel/processes.py); the first one writes and reports.

    Args:
      workdir: the run's folder, which is created if it does not exist.
      dry_run: whether to compile the step, print sizes, memory and time, and stop.
      force: whether to start although the step needs more memory than there is.

    Raises:
      UserError: the config, corpus or folder cannot be used; the message says why.
      Interrupted: SIGTERM or SIGINT came; a checkpoint has been written.
    """
    check(config)
    _check_agreement(config, workdir)
    _check_rate(config.train)
    mesh = make_mesh(config.mesh)
    run = RunFolder(workdir)
    config = with_origin(with_absolute_paths(config), run)
    check(config)  # with the keys of the run that it starts from, or learns from
    if not force:
        check_sizes(config, mesh, nominal_shape(config))
    if dry_run:
        keep_compiled_programs()
        _dry_run(run, config, mesh, force)
        return
    try:
        processes.first_does(lambda: _check_folder(run, config))
        keep_compiled_programs()  # perhaps in a folder below the run's
        _train_in(run, config, mesh, force)
    finally:
        for one, _ in _runs(run, config):
            one.unlock()


def _check_agreement(config: Config, workdir: str) -> None:
    """Raises ConfigError, on every process of the run, if their configs or folders differ.

    Paths of text may: each machine has its own.
    """
    values = {name: value_at(config, name) for name in KEYS if name not in PATHS}
    values["--workdir"] = os.path.abspath(workdir)
    first, *others = processes.gather(values)
    for number, other in enumerate(others, start=1):
        if wrong := [name for name in first if first[name] != other[name]]:
            raise ConfigError(
                f"process {number} has {wrong[0]}={other[wrong[0]]!r}, and process 0 has "
                f"{first[wrong[0]]!r}: start all processes with the same config and folder."
            )


def _check_rate(train: TrainConfig) -> None:
    """Raises ConfigError if the last steps would have a learning rate of 0."""
    decay = train.decay_steps
    if train.schedule in ("linear", "cosine") and decay is not None and train.steps > decay:
        raise ConfigError(
            f"train.steps={train.steps} is above train.decay_steps={decay}, where the learning "
            f"rate of train.schedule={train.schedule!r} reaches 0: the steps after it would change "
            f"nothing. In a new run set train.decay_steps={train.steps}; an old one cannot be "
            "lengthened, but another run can start from it with --init_from."
        )


def _dry_run(run: RunFolder, config: Config, mesh: Mesh, force: bool) -> None:
    """Prints what would be trained and how long it would take; writes nothing into the folder.

    Raises:
      UserError: the folder or the text files cannot be used, or memory is too small. A TFDS data
        set that is not prepared here is only reported.
    """
    processes.first_does(lambda: _check_folder(run, config, lock=False))
    try:
        data = _load(config, run)
    except DataError as error:
        if config.data.source != "tfds":
            raise
        sizes, shape = both_sides(config.vocabulary.size), nominal_shape(config)
        program = compile_program(config.model, config.train, mesh, sizes, shape)
        _print([*describe(config, program, sizes, shape, NOMINAL_FILL), f"data: {error}"])
        return
    program, described = _program(config, data, mesh, force)
    counts = {name: len(data.corpus.split(name)) for name in ("train", "valid")}
    pairs = ", ".join(f"{count:,} pairs in {name}" for name, count in counts.items())
    _print([*described, f"data: {data.corpus.describe()}: {pairs}"])
    timing = measure(config, data, program, at_least=2, for_seconds=2.0)
    steps = config.train.steps
    searches = ", without the searches of validation BLEU" * config.train.valid_bleu
    whole = clock(timing.seconds(steps, config.train.valid_every))
    times = f"{timing.step:.3g} s a step and {timing.check:.3g} s a validation"
    _print([f"time: {times}, {whole} for {steps:,} steps{searches}"])


def _print(lines: Iterable[str]) -> None:
    """Prints lines, on the first process only."""
    if processes.is_first():
        print("\n".join(lines), flush=True)


def _program(
    config: Config, data: TrainingData, mesh: Mesh, force: bool
) -> tuple[Program, list[str]]:
    """The compiled step, and lines that describe the run.

    Raises:
      UserError: the data does not fit the config, or the step needs too much memory.
    """
    banned_ids(config.decode, data.vocabulary)  # found wrong before training, not after it
    check_rows(config.train, mesh, data.shape.rows)
    sizes, shape = data.vocabulary.sizes, data.shape
    if config.vocabulary.path is not None and config.vocabulary.size != sizes.source:
        log.warning(
            "vocabulary.path has %d pieces: vocabulary.size=%d has no effect",
            sizes.source,
            config.vocabulary.size,
        )

    def prepare() -> None:
        """Does slow Python work early: step_flops caches its count, and an import stays loaded."""
        step_flops(config.model, sizes, shape.lengths, config.train)
        importlib.import_module("grain")

    log.info("compiling the training step")
    program = compile_program(config.model, config.train, mesh, sizes, shape, meanwhile=prepare)
    described = describe(config, program, sizes, shape, data.plan.tgt_fill, data.steps_per_epoch)
    if not force:
        check_bytes(program.memory_bytes, mesh, "The training step needs")
    return program, described


def _runs(run: RunFolder, config: Config) -> list[tuple[RunFolder, Config]]:
    """Folder and config of each direction of translation that is trained."""
    if config.train.agreement_weight is None:
        return [(run, config)]
    return [(run, config), (run.reverse, of_other_direction(config))]


def _check_folder(run: RunFolder, config: Config, lock: bool = True) -> None:
    run.check_can_train()
    for one, own in _runs(run, config):
        one.check(own, lock)
        check_metrics(one.path)
    if (project := config.train.wandb_project) is not None:
        import_wandb(project)


def _train_in(run: RunFolder, config: Config, mesh: Mesh, force: bool) -> None:
    """Trains to the last step, until train.patience runs out, or until a signal asks to stop.

    Raises:
      Interrupted: a signal came.
    """
    data = _load(config, run)
    program, described = _program(config, data, mesh, force)
    for line in described:
        log.info(line)
    if mesh.devices.flat[0].platform == "cpu":
        allocator.touch(program.memory_bytes)  # while the first state is made
    ways = [_one_way(one, own, data, config) for one, own in _runs(run, config)]
    try:
        states = _first_states(ways, program)
        start = int(states[0].step)
        for one in ways:
            curves = one.run.path / FILE
            if start != 0 and not curves.exists():
                log.warning("%s is gone: the curves begin after step %d", curves, start)
            if start == 0 and curves.exists():
                log.warning(
                    "%s has no checkpoint: training begins again at step 0, and averages that are "
                    "there are not of it",
                    one.run.path,
                )
        processes.first_does(lambda: _claim(ways))
        allocator.collect_as_usual()
        with StopRequest() as stop:
            scored = [one._replace(bleu=_make_bleu(one, program, stop)) for one in ways]
            last = train_steps(states, config.train, program, scored, stop)
    except BaseException:
        for one in ways:
            one.checkpoints.abandon()
        raise
    with contextlib.ExitStack() as closing:  # closes the others if one raises
        for one in ways:
            closing.callback(one.checkpoints.close)
    if stop.signal:
        processes.part()
        raise Interrupted(
            stop.signal,
            f"{signal.Signals(stop.signal).name}: stopped, with a checkpoint at step "
            f"{committed_steps(run.checkpoints)[-1]}; the same command continues from there.",
        )
    log.info("trained to step %d", last)


def _load(config: Config, run: RunFolder) -> TrainingData:
    """The run's data, with what a teacher predicts.

    Raises:
      UserError: it cannot be read, or it is not the same in every process.
    """
    data = with_teacher(load_data(config, run), config, run)
    number = processes.first_unlike([*data.fingerprints, data.vocabulary.digest])
    if number is not None:
        raise DataError(
            f"process {number} has other text, another vocabulary or another teacher than "
            "process 0: give every machine the same files."
        )
    return data


def _one_way(run: RunFolder, config: Config, data: TrainingData, main: Config) -> Direction:
    """The parts of a direction; `data` is that of the direction with the config `main`."""
    if config is not main:
        data = data.of_other_direction(config)
        run.check_corpus(*data.fingerprints)
        own = run.vocabulary_file
        known = load_vocabulary(own) if own.exists() else given_vocabulary(config)
        if known is not None and known.digest != data.vocabulary.digest:
            raise RunError(
                f"{run.path} or train.init_from has another vocabulary than the direction that it "
                "is trained with. Choose another --workdir, or leave train.init_from out."
            )
    train = config.train
    kept = train.keep_last, train.on_save_error, train.checkpoint_every
    return Direction(run, config, data, Checkpoints(run.checkpoints, *kept))


def _first_states(ways: Sequence[Direction], program: Program) -> States:
    """The states of the newest checkpoint of each direction; in a new run, the initial ones."""
    found = restore_newest([one.checkpoints for one in ways], program.saved_state)
    if found is None:
        return tuple(initial_state(one.config, program) for one in ways)
    states: States = tuple(program.from_saved(saved) for saved in found)
    log.info("continuing from step %d", int(states[0].step))
    return states


def _claim(ways: Sequence[Direction]) -> None:
    """Writes config, fingerprint and vocabulary into each folder; logs the keys that change."""
    for run, config, data, *_ in ways:
        if run.config_file.exists() and config is ways[0].config:
            for difference in mutable_differences(run.read_config(), config):
                log.info("from here on, %s", difference)
                name = difference.partition(" ")[0]
                if config.train.valid_bleu and name in SEARCHED:
                    log.warning(
                        "validation BLEU until here is by another search, and train.patience and "
                        "the choice of the best checkpoint compare it with later ones"
                    )
        run.claim(config, *data.fingerprints)
        if not run.vocabulary_file.exists():
            data.vocabulary.save(run.vocabulary_file)
        run.seal()


def _make_bleu(
    way: Direction, program: Program, stop: StopRequest
) -> Callable[[Params], float | None] | None:
    """What scores parameters by sacreBLEU of greedy search on the validation split.

    None: the run does not ask for it. It returns None if a signal comes while it translates.
    """
    config, data = way.config, way.data
    if not config.train.valid_bleu:
        return None
    from transformer_jax.evaluation.bleu import score  # takes 0.3 s, and few runs ask for it

    pairs = data.corpus.split("valid")
    mesh = decoding_mesh(config.mesh)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    method = config.model.parallel or "beam"
    greedy = dataclasses.replace(config.decode, method=method, beam_size=1, groups=1)
    banned = banned_ids(greedy, data.vocabulary)

    def bleu(params: Params) -> float | None:
        """The score of these parameters; None if a signal came."""
        own = local(program.replicated(params), axis_names(program.model), mesh)
        translator = translator_for(method)(program.model, own, greedy, mesh, banned=banned)
        read = FeatureReader(config.data, config.data.path) if config.model.features else None
        lines = LineTranslator(data.vocabulary, translator, read=read)
        hypotheses: list[str] = []
        for start in range(0, len(sources), BLEU_LINES):
            if stop.signal:
                return None
            part = lines.shared(sources[start : start + BLEU_LINES])
            hypotheses += [best.text for best, *_ in part]
        lines.warn_of_cut()
        return score(hypotheses, references, *config.data.between("valid")).bleu

    return bleu
