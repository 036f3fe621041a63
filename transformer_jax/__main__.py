"""The program `transformer-jax`: each command calls a function of a module in `commands`."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax import __version__
from transformer_jax.allocator import SWITCH, collect_rarely, use_huge_pages
from transformer_jax.errors import UserError
from transformer_jax.parallel import processes
from transformer_jax.use.command_line import (
    OVERRIDES,
    Flag,
    describe_flags,
    exit_status,
    parse_flags,
    set_up_logs,
)
from transformer_jax.use.environment import (
    check_devices,
    check_environment,
    end_stuck_threads,
    ended_by_interrupts,
    open_missing_streams,
)

if TYPE_CHECKING:
    from transformer_jax.config.schema import Config


class Command(NamedTuple):
    """What a command's name on the command line calls."""

    target: str  # "module:function", imported when called
    help: str
    flags: tuple[Flag, ...]
    uses_devices: bool = True
    keys: tuple[str, ...] = ()  # config keys, or prefixes of keys, that --config.KEY may override


CONFIG = Flag(
    "config", str, "FILE[:ARGUMENT]", "a config file, such as configs/demo.py", required=True
)
WORKDIR = Flag("workdir", str, "FOLDER", "the run's folder", required=True)
WORKDIRS = WORKDIR._replace(kind=list, help="the run's folder; several: an ensemble")
WHICH = "latest, best, average (or one: 300-last3) or a step"
CHECKPOINT = Flag("checkpoint", str, "WHICH", WHICH, default="latest")
BEAM_SIZE = Flag("beam_size", int, "K", "hypotheses a sentence; 1 is greedy (the config's)")
LENGTH_PENALTY = Flag("length_penalty", float, "ALPHA", "alpha of decode.penalty (the config's)")
COVERAGE_PENALTY = Flag(
    "coverage_penalty", float, "BETA", "beta of Wu et al. 2016, equation 14 (the config's)"
)
# Commands that may run as several processes have these flags too.
PROCESSES = (
    Flag("coordinator", str, "HOST:PORT", "of several processes: where process 0 listens"),
    Flag("num_processes", int, "N", "how many there are; train alone with it starts them here"),
    Flag("process_id", int, "I", "which this one is, from 0; docs/many_machines.md"),
)

EVERY_KEY = ("",)
SCORED = "penalty length_penalty coverage_penalty max_length tokens_per_batch dtype weights wait_k"
SOURCES = Flag("src", str, "FILE", "the sources", required=True)
ANY_SOURCES = SOURCES._replace(required=False, help="the sources (none for a language model)")
TRANSLATIONS = Flag("tgt", str, "FILE", "their translations, a line each", required=True)

COMMANDS = {
    "train": Command(
        "transformer_jax.use.train:train",
        "train a model, or continue a run",
        (
            CONFIG._replace(required=False, help="a config file (the run's config.json)"),
            WORKDIR._replace(required=False),
            Flag("dry_run", bool, "", "stop before step 1: sizes, memory, texts", default=False),
            Flag("force", bool, "", "start although memory is too small", default=False),
            Flag("print_config", bool, "", "print the config as JSON and stop", default=False),
            Flag("init_from", str, "FOLDER", "start a new run from this run's weights"),
            *PROCESSES,
            Flag("restarts", int, "N", "start again until N deaths without a new checkpoint"),
        ),
        keys=EVERY_KEY,
    ),
    "translate": Command(
        "transformer_jax.commands.translate:translate",
        "translate standard input, line by line, to standard output",
        (
            WORKDIRS,
            CHECKPOINT,
            BEAM_SIZE,
            LENGTH_PENALTY,
            COVERAGE_PENALTY,
            Flag("n_best", int, "N", "translations of each line", default=1),
            Flag("engine", str, "NAME", "ctranslate2 searches instead, or ctranslate2:int8"),
            Flag("sample", bool, "", "draw translations instead of searching", default=False),
            Flag("scores", bool, "", "log probability / length penalty too", default=False),
            Flag("simultaneous", bool, "", "while lines arrive, word by word", default=False),
            *PROCESSES,
        ),
        keys=("decode.",),
    ),
    "evaluate": Command(
        "transformer_jax.commands.evaluate:evaluate",
        "translate a split and score it: BLEU, paper BLEU, chrF",
        (
            WORKDIRS,
            Flag("split", str, "NAME", "split of the run's corpus (test)"),
            Flag("src", str, "FILE", "a file to translate instead, with --ref"),
            Flag("ref", list, "FILE", "its references; several: repeat the flag, or commas"),
            CHECKPOINT,
            BEAM_SIZE,
            Flag("examples", int, "N", "translations to print, with their sources", default=0),
            *PROCESSES,
        ),
        keys=("decode.", "data.path", "data.valid", "data.test"),
    ),
    "score": Command(
        "transformer_jax.commands.score:score",
        "score given translations: SCORE, LOG_PROBABILITY, SUBWORDS a line",
        (WORKDIRS, ANY_SOURCES, TRANSLATIONS, CHECKPOINT, LENGTH_PENALTY, COVERAGE_PENALTY),
        keys=tuple(f"decode.{name}" for name in SCORED.split()),  # that change given scores
    ),
    "align": Command(
        "transformer_jax.commands.align:align",
        "word alignments of given translations: i-j, source and target word from 0",
        (
            Flag("workdir", str, "FOLDER", "a run; none: two HMMs, trained on these lines alone"),
            SOURCES,
            TRANSLATIONS,
            Flag("gold", str, "FILE", "the right links, for alignment error rates"),
            Flag("layer", int, "N", "from 1; else model.watched_layer"),
            CHECKPOINT,
        ),
    ),
    "attention": Command(
        "transformer_jax.commands.attention:attention",
        "translate a sentence and draw, or write, what its words attended to",
        (
            Flag("sentence", str, "SENTENCE", "what to translate", required=True, positional=True),
            WORKDIR,
            Flag("target", str, "TEXT", "the translation to give the model, instead of its own"),
            Flag("kind", str, "KIND", "cross, encoder, decoder; all (no picture)", default="cross"),
            Flag("layer", int, "N", "from 1 (a picture: the last; else all)"),
            Flag("head", int, "N", "from 1 (all)"),
            Flag(
                "output",
                str,
                "FILE",
                "picture .png .pdf .svg; page .html; .npz .json",
                default="attention.png",
            ),
            CHECKPOINT,
        ),
    ),
    "serve": Command(
        "transformer_jax.commands.serve:serve",
        "a page and an HTTP API that translate, on this machine",
        (
            WORKDIR,
            CHECKPOINT,
            Flag("host", str, "ADDRESS", "where to listen", default="127.0.0.1"),
            Flag("port", int, "N", "0: a free one", default=8_000),
            Flag("allow_host", list, "NAME", "a name of the server; repeat the flag for several"),
        ),
        keys=("decode.",),
    ),
    "plot": Command(
        "transformer_jax.commands.plot:plot",
        "draw the training curves of any runs into one figure",
        (
            WORKDIR._replace(kind=list, help="a run's folder; repeat the flag for several"),
            Flag("output", str, "FILE", "the .png file to write", default="curves.png"),
        ),
        uses_devices=False,
    ),
    "average": Command(
        "transformer_jax.commands.average:average",
        "average a run's last checkpoints into one",
        (WORKDIR, Flag("last", int, "K", "how many", default=5)),
    ),
    "import": Command(
        "transformer_jax.commands.import_model:import_model",
        "make a run of a pretrained model: a folder of Marian, Hugging Face or CTranslate2",
        (
            Flag("from", str, "FOLDER", "folder or hub name", required=True, parameter="folder"),
            WORKDIR._replace(help="the run's folder, which is created"),
            Flag("src", str, "CODE", "source language, such as en (the tokenizer's)"),
            Flag("tgt", str, "CODE", "target language"),
        ),
    ),
    "export": Command(
        "transformer_jax.commands.export:export",
        "write a run's model for CTranslate2, for Hugging Face's transformers or as StableHLO",
        (
            WORKDIR,
            Flag("format", str, "FORMAT", "ctranslate2, huggingface or stablehlo", required=True),
            Flag("output", str, "FOLDER", "the folder to create", required=True),
            Flag("quantization", str, "TYPE", "ctranslate2: float16, int8, ... (float32)"),
            Flag("gold", str, "STEM", "ctranslate2: pairs and links that choose what aligns"),
            CHECKPOINT,
        ),
    ),
    "experiment": Command(
        "transformer_jax.commands.experiment:experiment",
        "run an experiment, as python -m experiments.NAME does in a checkout",
        (Flag("name", str, "NAME", "its module; none: list them", default="", positional=True),),
        uses_devices=False,
    ),
    "keys": Command(
        "transformer_jax.commands.keys:keys",
        "list the keys of the config: type, default, range, meaning",
        (
            Flag("prefix", str, "PREFIX", "such as decode, model.num", default="", positional=True),
            Flag("markdown", bool, "", "print the page docs/keys.md", default=False),
        ),
        uses_devices=False,
    ),
    "prepare": Command(
        "transformer_jax.commands.prepare:prepare",
        "download and prepare a config's data set",
        (CONFIG,),
        keys=EVERY_KEY,
        uses_devices=False,
    ),
}

USAGE = "python -m transformer_jax COMMAND --FLAG=VALUE ..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status: 0, or 2 for a user's mistake."""
    if arguments is None:
        use_huge_pages()
        collect_rarely()
    closed = open_missing_streams()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = exit_status(lambda: run(given, closed))
    except Exception as error:
        processes.leave(1, error)
        raise
    if status:
        processes.leave(status)
        if arguments is None:
            end_stuck_threads(status)
    return status


def run(arguments: list[str], closed: Collection[str] = ()) -> None:
    """Calls the command that the arguments name, with its flags.

    Args:
      arguments: the command line.
      closed: names of the standard streams that are closed.
    """
    name, *rest = arguments or [""]
    if name in ("-h", "--help", "help"):
        print(program_help())
        return
    if name == "--version":
        print(f"transformer-jax {__version__}")
        return
    command = find_command(name)
    own = rest[:1] if name == "experiment" else rest  # an experiment has a help of its own
    if "-h" in own or "--help" in own:
        print(command_help(name, command))
        return
    with ended_by_interrupts():
        call = prepare_call(name, command, rest, closed)
    call()


def prepare_call(
    name: str, command: Command, arguments: list[str], closed: Collection[str]
) -> Callable[[], object]:
    """The call of a command: its flags are checked, its processes joined, its module imported."""
    check_environment()
    values = read_values(name, command, arguments)
    if values.pop("print_config", False):
        from transformer_jax.config.serialization import to_json

        return lambda: print(to_json(values["config"]), end="")
    if PROCESSES[0] in command.flags:
        coordinator, number, this = (values.pop(flag.name) for flag in PROCESSES)
        # Without an address and a number of its own, `train` starts this many processes itself.
        here = number if coordinator is None and this is None else None
        restarts = values.pop("restarts", 0)
        if restarts or (restarts is None and here is not None):
            from transformer_jax.use.supervised import supervise

            return functools.partial(supervise, arguments, values["workdir"], here, restarts or 0)
        processes.join(coordinator, number, this, agree_on_stops=name == "train")
    if command.uses_devices:
        check_devices()
        processes.check_alone()
    if name == "translate":  # bytes, independent of the locale's encoding
        for stream in sorted({"standard input", "standard output"} & set(closed)):
            raise UserError(f"{stream} is closed or cannot be used. Use ... < TEXT > OUTPUT.")
        values |= {"stdin": sys.stdin.buffer, "stdout": sys.stdout.buffer}
    set_up_logs(quiet=not processes.is_first())
    module, _, function = command.target.partition(":")
    target: Callable[..., object] = getattr(importlib.import_module(module), function)
    return functools.partial(target, **values)


def find_command(name: str) -> Command:
    """The command of that name. Raises UserError, with the nearest name, if there is none."""
    if name in COMMANDS:
        return COMMANDS[name]
    known = ", ".join(COMMANDS)
    if not name or name.startswith("-"):
        raise UserError(f"name a command first: {known}. What each does: --help.")
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UserError(f"{name!r} is not a command. {meant}Commands: {known}.")


def read_values(name: str, command: Command, arguments: list[str]) -> dict[str, Any]:
    """The keyword arguments of the command's function. Raises UserError if a flag is invalid."""
    if name == "experiment" and arguments and not arguments[0].startswith("-"):
        return {"name": arguments[0], "arguments": arguments[1:]}
    if not command.keys:
        return parse_flags(name, command.flags, arguments, ())
    from transformer_jax.config.files import split_overrides

    others, overrides = split_overrides(arguments)
    values = parse_flags(name, command.flags, others, tuple(command.keys))
    if command.keys != EVERY_KEY:
        if wrong := [key for key in overrides if not key.startswith(command.keys)]:
            raise UserError(
                f"{name} does not take --config.{wrong[0]}. It takes {keys_of(command)}."
            )
        return values | {"overrides": overrides}
    if name == "train" and not (values["workdir"] or values["print_config"]):
        raise UserError(f"train needs {WORKDIR.shown}: {WORKDIR.help}.")
    given = values.pop("init_from", None)
    if given is not None and overrides.setdefault("train.init_from", given) != given:
        raise UserError("--init_from and --config.train.init_from name two runs: give one.")
    return values | {"config": read_config(values["config"], values.get("workdir"), overrides)}


def read_config(file: str | None, workdir: str | None, overrides: Mapping[str, Any]) -> Config:
    """The config of a config file or, without one, of the run in `workdir`; with overrides.

    Raises:
      UserError: there is neither, or the config is invalid.
    """
    from transformer_jax.config.changes import with_values
    from transformer_jax.config.checks import check
    from transformer_jax.config.files import load_config
    from transformer_jax.runs.run_folder import RunFolder

    if file:
        return load_config(file, overrides)
    run = RunFolder(workdir or "")
    if not workdir or not run.config_file.exists():
        continued = f"{run.path} holds no run to continue" if workdir else CONFIG.help
        raise UserError(f"train needs {CONFIG.shown}: {continued}.")
    config = with_values(run.read_config(), overrides)
    check(config, list(overrides))
    return config


def keys_of(command: Command) -> str:
    """The keys that a command takes, for a message: decode.*, data.path."""
    return ", ".join(key + "*" if key.endswith(".") else key for key in command.keys)


def program_help() -> str:
    """The commands, one line each."""
    rows = [f"  {name:<11}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [f"usage: {USAGE}", "", *rows, "", "Flags of a command: COMMAND --help", SWITCH]
    )


def command_help(name: str, command: Command) -> str:
    """What a command does, and its flags."""
    positional = [flag.value for flag in command.flags if flag.positional]
    lines = [
        " ".join(["usage:", USAGE.replace("COMMAND", name), *positional]),
        "",
        command.help,
        "",
        describe_flags(command.flags),
    ]
    if command.keys == EVERY_KEY:
        lines.append(f"  {OVERRIDES}")
    elif command.keys:
        text = f"  {'--config.KEY=VALUE':<26}overrides {keys_of(command)}"
        lines += textwrap.wrap(text, 100, subsequent_indent=" " * 28)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
