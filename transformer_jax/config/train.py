"""The keys `train.*`: batches, optimizer, schedule and intervals."""

import dataclasses

from transformer_jax.config.keys import key
from transformer_jax.config.model import UNTESTED

PAPER_STEPS = "The paper uses 100000 (base) and 300000 (big)."
REWARDED = tuple(f"train.objective={name}" for name in ("risk", "self_critical", "constant"))
NO_CLIPPING = "None turns clipping off."


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer, schedule and intervals; the defaults are the paper's (section 5)."""

    steps: int = key(100_000, "updates, one batch each", mutable=True, at_least=1, hint=PAPER_STEPS)
    tokens_per_batch: int = key(
        25_000, "nominal target tokens per update, over all devices", at_least=1
    )
    row_length: int = key(256, "target subwords of a packed row", at_least=2)
    rows_multiple: int = key(8, "the rows of a batch are a multiple of this", at_least=1)
    label_smoothing: float = key(
        0.1,
        "epsilon_ls: the share of probability that is spread evenly over all subwords",
        at_least=0,
        below=1,
        hint="The paper uses 0.1; 0 turns it off.",
    )
    coverage_weight: float = key(
        0.0,
        "weight of the coverage loss (See et al. 2017, equation 13, where it is 1) on "
        "model.watched_layer",
        at_least=0,
    )
    alignment_weight: float = key(
        0.0,
        "weight of the cross-entropy between links and the attention of model.watched_layer (Mi et "
        "al. 2016; Garg et al. 2019, where it is 0.05); needs data.alignments=True",
        at_least=0,
        excludes={
            "model.wait_k": "a link may point to a word that is not yet read, to which the "
            "attention is 0"
        },
    )
    alignment_context: str = key(
        "past",
        "what the decoder sees of the translation where train.alignment_weight trains attention; "
        "past: the subwords before, as in translation; full: all of it, in a second pass that only "
        "learns to align, and that `align` uses (Garg et al. 2019, section 4.3)",
        choices=("past", "full"),
        read_with=("train.alignment_weight",),
        excludes=dict.fromkeys(
            ("model.window", "model.wait_k", "model.pattern"), "it leaves out a part of the text"
        ),
    )
    avoidance_weight: float = key(
        0.0,
        "weight of -log(1 - the attention of model.watched_layer to linked subwords) (Pruthi et "
        "al. 2020): trains attention not to explain the translation; needs data.alignments=True",
        at_least=0,
    )
    fertility_weight: float = key(
        0.0,
        "weight of (1 - the attention that a source subword gets from all target positions on "
        "model.watched_layer)^2 (Cohn et al. 2016)",
        at_least=0,
    )
    agreement_weight: float | None = key(
        None,
        "trains the other direction of translation too, on the same batches with swapped sides, as "
        "a run of its own in WORKDIR/reverse; the weight of a bonus for attentions that agree on "
        "model.watched_layer (Cohn et al. 2016, section 3.4; 0: no bonus); None: one direction",
        at_least=0,
        excludes={
            "vocabulary.separate": "each subword must be in the vocabulary of both directions",
            "data.alignments": "links are those of one direction",
            "model.wait_k": "attention to what is read so far differs in both directions",
            "model.output": UNTESTED,
            "train.patience": "both directions have to end at the same step",
            "train.hard_attention": UNTESTED,
            "train.consistency_weight": UNTESTED,
        },
    )
    consistency_weight: float = key(
        0.0,
        "weight of how far the predictions of two passes with different dropout masks differ "
        "(R-Drop, Liang et al. 2021, where it is 5 for translation); a step takes twice the FLOPs",
        at_least=0,
        excludes={
            "model.output": UNTESTED,
            "model.wait_k_max": "each of the two passes would draw another k",
            "train.hard_attention": "its loss has no second pass",
        },
    )
    teacher: str | None = key(
        None,
        "folder of a trained run whose predictions are learned too: the 8 likeliest subwords at "
        "each position of the training text (word-level distillation, Kim and Rush 2016; Tan et "
        "al. 2019); the run takes that run's vocabulary, with the keys with which it was trained",
        mutable=True,
        excludes={
            "model.output": UNTESTED,
            "train.agreement_weight": "the teacher translates in one direction",
            "train.consistency_weight": UNTESTED,
            "train.hard_attention": UNTESTED,
        },
    )
    distillation_weight: float = key(
        1.0,
        "weight of the cross entropy of the teacher's predictions, beside that of the text",
        above=0,
        read_with=("train.teacher",),
    )
    hard_attention: str | None = key(
        None,
        "reinforce: training draws what model.watched_layer reads (Xu et al. 2015); None: no draws",
        choices=("reinforce",),
        excludes={
            "train.alignment_context": "its second pass predicts nothing from which draws could "
            "learn",
            "model.output": UNTESTED,
            "model.combination": "a draw reads one position of all source sentences",
            "model.attention_memory": "it would remember the weights, not the positions that were "
            "read",
        },
    )
    objective: str | None = key(
        None,
        "what is learned of translations that the model draws of each source, beside the "
        "likelihood of the text; their reward is sentence BLEU of subwords; risk: the expected "
        "cost, 1 - BLEU (Shen et al. 2016); self_critical: REINFORCE, whose baseline is the mean "
        "reward of the other draws (Rennie et al. 2017; Luo 2020); constant: REINFORCE with the "
        "reward 1, a control (Choshen et al. 2020). back_translation: no reward; of two languages "
        "the target sides alone are read, and learned from their translations by the model and "
        "from themselves with noise (Lample et al. 2018). None: nothing is drawn. A row then has "
        "one pair; start from a trained model (train.init_from)",
        choices=("risk", "self_critical", "constant", "back_translation"),
        excludes={
            "model.output": UNTESTED,
            "model.wait_k": UNTESTED,
            "model.encoder=none": "nothing is translated",
            "vocabulary.dropout": "the reward compares subwords, which are cut at random",
            "train.agreement_weight": UNTESTED,
            "train.consistency_weight": UNTESTED,
            "train.hard_attention": UNTESTED,
            "train.teacher": UNTESTED,
        },
    )
    objective_weight: float = key(
        1.0,
        "weight of the cost of drawn translations, each sentence counted with its number of target "
        "subwords, beside that of the text's likelihood (from noise: back_translation), which is 1",
        above=0,
        read_with=("train.objective",),
    )
    candidates: int = key(8, "translations drawn of each source", at_least=2, read_with=REWARDED)
    sharpness: float = key(
        1.0,
        "exponent of the probabilities from which risk makes its distribution over the different "
        "draws (Shen et al. 2016, equation 9, where it is 0.005)",
        above=0,
        read_with=("train.objective=risk",),
    )
    optimizer: str = key(
        "adam",
        "adam: the paper's; muon: matrices of products are updated by their momentum with singular "
        "values near 1, everything else by Adam (Jordan et al. 2024; Liu et al. 2025)",
        choices_of="transformer_jax.training.optimizer:OPTIMIZERS",
    )
    schedule: str = key(
        "rsqrt",
        "learning rate after the warm-up; rsqrt is equation 3",
        choices_of="transformer_jax.training.optimizer:SCHEDULES",
    )
    peak_learning_rate: float | None = key(
        None,
        "learning rate at the end of the warm-up; None: (d_model * warmup_steps)^-0.5",
        above=0,
        hint="None gives the paper's (d_model * warmup_steps)^-0.5.",
    )
    warmup_steps: int = key(4_000, "updates of linear warm-up", at_least=0)
    decay_steps: int | None = key(
        None,
        "updates after which linear and cosine reach 0",
        at_least=1,
        read_with=("train.schedule=linear", "train.schedule=cosine"),
    )
    adam_b1: float = key(0.9, "beta_1 of Adam", at_least=0, below=1)
    adam_b2: float = key(0.98, "beta_2 of Adam", at_least=0, below=1)
    adam_epsilon: float = key(1e-9, "epsilon of Adam", above=0)
    weight_decay: float = key(
        0.0,
        "each update also takes learning rate * weight_decay * parameter from every parameter "
        "(AdamW, Loshchilov and Hutter 2019); Vaswani et al. 2017 have none",
        at_least=0,
        below=1,
    )
    clip_norm: float | None = key(
        None, "largest global norm of the gradient; None: not clipped", above=0, hint=NO_CLIPPING
    )
    accumulate_steps: int = key(1, "micro-batches per update", mutable=True, at_least=1)
    remat: bool = key(
        False, "recompute each layer in the backward pass, which saves memory", mutable=True
    )
    loss_block: int | None = key(
        None,
        "target positions per device whose logits are in memory at once (not with "
        "model.parallel=ctc); None: 8,192 on a GPU, otherwise 2,048",
        mutable=True,
        at_least=1,
    )
    logits_dtype: str | None = key(
        None,
        "type in which training's loss reads the logits, whose product adds in float32; bfloat16 "
        "moves less memory on a GPU (docs/speed.md); None: float32, as in validation",
        choices=("bfloat16",),
        read_with=("model.dtype=bfloat16",),
        excludes={"model.parallel=ctc": "CTC's sums need float32"},
    )
    max_skipped: int = key(
        10, "non-finite updates in a row after which training stops", mutable=True, at_least=1
    )
    init_from: str | None = key(
        None,
        "folder of a run whose weights a new run starts from; it takes that run's vocabulary too, "
        "with the keys with which it was trained",
        mutable=True,
    )
    elastic_weight: float = key(
        0.0,
        "weight of the sum of F (w - w_0)^2 over the weights, which keeps what mattered to the run "
        "that this one starts from (elastic weight consolidation, Kirkpatrick et al. 2017): w_0 "
        "are its weights, and F the mean over rows of its training text of the squared gradient "
        "of the log likelihood; checkpoints hold both",
        at_least=0,
        read_with=("train.init_from",),
        excludes={"train.agreement_weight": UNTESTED},
    )
    log_every: int = key(100, "steps between two lines of metrics", mutable=True, at_least=1)
    wandb_project: str | None = key(
        None, "project of Weights & Biases (pip install wandb); None: off", mutable=True
    )
    valid_every: int = key(1_000, "steps between two validations", mutable=True, at_least=1)
    valid_bleu: bool = key(
        False, "greedy BLEU of the validation split too; it then decides the best checkpoint"
    )
    patience: int | None = key(
        None,
        "validations in a row without a better score after which training ends; None: it never "
        "ends early",
        mutable=True,
        at_least=1,
    )
    checkpoint_every: int = key(1_000, "steps between two checkpoints", mutable=True, at_least=1)
    keep_last: int = key(20, "checkpoints kept, beside the best", mutable=True, at_least=1)
    on_save_error: str = key(
        "stop",
        "what training does if a checkpoint cannot be written",
        mutable=True,
        choices=("stop", "continue"),
    )
