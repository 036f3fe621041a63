"""What each command takes: its flags, the keys of the config that it reads, and its function."""

from typing import NamedTuple

from transformer_jax.use.command_line import Flag


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
FROM = Flag("from", str, "LANGUAGE", "with --to: this direction of a split", parameter="source")
TO = Flag("to", str, "LANGUAGE", "the target language, of a run with several directions")
SHORT = {"init_from": "train.init_from", "to": "decode.to"}  # flags that set this key
# Commands that may run as several processes have these flags too.
PROCESSES = (
    Flag("coordinator", str, "HOST:PORT", "of several processes: where process 0 listens"),
    Flag("num_processes", int, "N", "how many there are; train alone with it starts them here"),
    Flag("process_id", int, "I", "which this one is, from 0; docs/many_machines.md"),
)

EVERY_KEY = ("",)
SCORED = "to penalty length_penalty coverage_penalty max_length tokens_per_batch dtype weights"
SOURCES = Flag("src", str, "FILE", "the sources", required=True)
ANY_SOURCES = SOURCES._replace(required=False, help="the sources (none for a language model)")
OWN_TEXT = ("data.source", "data.path")  # keys that say where a run's text is now
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
            TO,
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
    "augment": Command(
        "transformer_jax.commands.augment:augment",
        "write a text and its translations as training text: back-translation, distillation",
        (
            Flag("reverse", str, "FOLDER", "the run that translates the text", required=True),
            Flag("text", str, "FILE", "the text, one sentence a line", required=True),
            Flag("output", str, "STEM", "writes STEM.LANGUAGE of both", required=True),
            Flag("how", str, "HOW", "beam, sample, or top_k: of 10 subwords (as the run does)"),
            TO,
            CHECKPOINT,
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
            FROM,
            TO,
            CHECKPOINT,
            BEAM_SIZE,
            Flag("examples", int, "N", "translations to print, with their sources", default=0),
            *PROCESSES,
        ),
        keys=("decode.", *OWN_TEXT, "data.valid", "data.test"),
    ),
    "score": Command(
        "transformer_jax.commands.score:score",
        "score given translations: SCORE, LOG_PROBABILITY, SUBWORDS a line",
        (
            WORKDIRS,
            ANY_SOURCES,
            TRANSLATIONS,
            Flag("contrastive", list, "FILE", "wrong ones: how often does --tgt score higher?"),
            TO,
            CHECKPOINT,
            LENGTH_PENALTY,
            COVERAGE_PENALTY,
        ),
        keys=tuple(
            f"decode.{name}" for name in f"{SCORED} wait_k".split()
        ),  # that change given scores
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
            Flag("explain", str, "METHOD", "alti, gradient, ... in place of a layer's weights"),
            TO,
            CHECKPOINT,
        ),
        keys=("decode.to",),
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
            Flag("explain", str, "METHOD", "alti, norms, rollout, flow, gradient, leave_one_out"),
            Flag(
                "output",
                str,
                "FILE",
                "picture .png .pdf .svg; page .html; .npz .json",
                default="attention.png",
            ),
            TO,
            CHECKPOINT,
        ),
        keys=("decode.to",),
    ),
    "serve": Command(
        "transformer_jax.commands.serve:serve",
        "a page and an HTTP API that translate, on this machine",
        (
            WORKDIR,
            TO,
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
    "quantize": Command(
        "transformer_jax.commands.quantize:quantize",
        "write a run whose weights take a quarter of the space: int8, with scales",
        (WORKDIR, Flag("output", str, "FOLDER", "the new run's folder", required=True), CHECKPOINT),
    ),
    "prune": Command(
        "transformer_jax.commands.prune:prune",
        "write a smaller run, without the attention heads that matter least",
        (
            WORKDIR,
            Flag("output", str, "FOLDER", "the new run's folder", required=True),
            Flag("heads", float, "SHARE", "of each attention's heads that goes", required=True),
            Flag("by", str, "HOW", "importance or random", default="importance"),
            Flag("seed", int, "N", "of the random choice (0)"),
            CHECKPOINT,
        ),
        keys=(*OWN_TEXT, "data.valid"),
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
