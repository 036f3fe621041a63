"""One stack or two: translation by a language model beside an encoder-decoder.

    python -m experiments.one_stack --scale=small

The question: does translation need an encoder? A language model can read the source as the
beginning of its own text (Wang et al. 2021; Gao et al. 2022). Is it as good at equal size, and does
it help if source positions may see later ones (a prefix)?

The rows are the short demo's model of 2 + 2 layers, and one stack that reads source and target.
With the same number of parameters (4 layers, d_ff 640) it is a prefix or has a causal mask; with
the same number of FLOPs it has half as many layers, since each layer is applied to both sides. Each
row has the best of four peak rates (experiments.rates). The text is the built-in corpus, for 1,000
updates. The scale multi30k is the small pre-norm model of table 2 on captions (3 + 3 layers,
d_model 128; 800 updates, one rate for all) beside 7 layers and 3.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"As good as two stacks" holds for a row if its BLEU is higher than that of the encoder-decoder less
1, and does not if it is lower. "Looking ahead in the source helps" holds if the prefix has more
BLEU than the causal mask, and does not if it has less. The control, which must fail: each line gets
the source of the next one. "It reads the source" holds if BLEU is then below 5, and does not if it
is above. An identity is tested: with a causal mask the logits are those of the language model of
both texts.
"""

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, more, page_of_runs
from experiments.several_sources import scored
from experiments.short_demo import SHORT_DEMO, at_rates
from experiments.table3_ablations import BASE, RECIPE, SHORT, shrink
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale

TWO, PREFIX, CAUSAL, CHEAP = "two stacks", "prefix", "causal", "prefix, equal FLOPs"
NEAR = -1.0  # BLEU
MOST = 5.0  # BLEU with the source of another line
RIGHT = at("bleu")
COLUMNS = [
    Column("parameters", at("parameters"), ",.0f"),
    Column("BLEU", RIGHT, ".1f"),
    Column("with the next line's source", at("wrong"), ".1f"),
]
RULES = [
    Rule("as good as two stacks", more(RIGHT), 1, NEAR, (TWO,)),
    Rule("looking ahead in the source helps", more(RIGHT), 1, 0, (CAUSAL,), (PREFIX,)),
    Rule("it reads the source", at("wrong"), -1, MOST),
]


def rows_of(layers: int, cheap: int, d_ff: int) -> dict[str, Overrides]:
    """The rows: `layers` of one stack have the parameters of the two, `cheap` their FLOPs."""
    one = {"model.num_decoder_layers": layers, "model.d_ff": d_ff}
    return {
        TWO: {},
        PREFIX: {"model.encoder": "prefix", **one},
        CAUSAL: {"model.encoder": "causal_prefix", **one},
        CHEAP: {"model.encoder": "prefix", **one, "model.num_decoder_layers": cheap},
    }


ROWS = rows_of(4, 2, 640)
ON_CAPTIONS = rows_of(7, 3, 512)
RATES = {TWO: 0.004, PREFIX: 0.008, CAUSAL: 0.008, CHEAP: 0.008}  # chosen by experiments.rates


def measured(job: Job) -> Evidence:
    """Parameters, and BLEU with the right source and with that of the next line."""
    from transformer_jax.api import load
    from transformer_jax.model.parameters import parameter_count

    bleu, sources, references = scored(job)
    run = load(job.folder)
    wrong = run.evaluate([*sources[1:], sources[0]], references)
    count = parameter_count(run.loaded.model)
    return {"parameters": count, "bleu": bleu, "wrong": wrong.bleu}


EXPERIMENT = Experiment(
    name="one_stack",
    rows=ROWS,
    scales={
        "small": SHORT_DEMO._replace(own=at_rates(RATES)),
        "multi30k": Scale(
            "configs/multi30k.py",
            {**shrink(BASE), **RECIPE, **SHORT, "model.norm": "pre"},
            seeds=(0, 1, 2),
            own=ON_CAPTIONS,
            compared=False,
        ),
    },
    about=__doc__,
    findings=page_of_runs(measured, RULES, COLUMNS, "BLEU"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
