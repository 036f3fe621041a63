"""`check` refuses a bad value and names the key, its value, what is allowed and the fix."""

import re
from typing import Any

import pytest

from tests.fixtures.cases import of_table, other_value, refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check, check_values
from transformer_jax.config.files import split_overrides
from transformer_jax.config.keys import Key
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.monotonic import MONOTONIC

GOOD = {"data.source": "grammar"}  # the smallest change that makes the defaults valid
FILES = {"data.source": "files", "data.path": "x"}

# Settings that many cases share.
WORDS = {
    "BOTH": "TWO model.sources=2",
    "TWO": "FILES data.src=en,fr",  # source languages
    "PREFIX": "FILES model.encoder=prefix",
    "NO_SOURCE": "FILES model.encoder=none data.src= data.tgt=en",
    "PICTURES": "FILES data.src_kind=pictures model.features=256",
    "FILES": "data.source=files data.path=x",
    "FULL": "LINKED train.alignment_context=full",
    "LINKED": "train.alignment_weight=0.1 data.alignments=True",
    "ALONE": "data.train=('a@en','b@fr') data.valid=('v@en',) train.objective=back_translation",
    "CTC": "model.parallel=ctc decode.method=ctc",
    "LEARNED": "model.positions=learned",
    "DIFFERENTIAL": "model.normalizer=differential",
    "CONSISTENT": "train.consistency_weight=5.0",
    "DRAWN": "train.hard_attention=reinforce",
    "AGREEING": "train.agreement_weight=0.0",
}

# Settings, and what their error must contain: key, value, what is allowed or the fix; an indented
# line continues the one above. What users do wrong most often is in tests/test_bad_input.py.
BAD = """
# One number; test_numbers_end_where_the_schema_says has every key.
model.num_layers=0 | model.num_layers=0 is below 1. The default is 6.
model.dropout=1.0 | model.dropout=1.0 is not in [0, 1) | paper uses 0.1
train.clip_norm=0.0 | train.clip_norm=0.0 is not in (0, 3.4e+38) | None turns
train.peak_learning_rate=1e-300 | learning_rate=1e-300 counts as 0 in float32
decode.top_p=0.5 decode.method=sample decode.temperature=0 | decode.top_p changes nothing
decode.top_p=1e-40 decode.method=sample | decode.top_p=1e-40 counts as 0
mesh.tensor=-2 | mesh.tensor=-2 | at least 1, or -1
mesh.fsdp=-1 | mesh.data and mesh.fsdp are both -1 | only one
# What the model can be.
model.num_heads=4 model.num_key_heads=3 | model.num_key_heads=3 does not divide model.num_heads=4
    num_key_heads=None
model.window=4 | model.window=4 is even | Use 5
model.global_every=2 | model.global_every=2 | without model.window all layers
model.window=3 model.global_every=4 model.num_layers=3 | model.global_every=4 changes nothing
    stacks with self-attention have fewer layers
model.positions=sinusoidal_t2t model.d_model=2 model.num_heads=1 | model.d_model=2 is below 4
    model.positions='sinusoidal'
model.positions=sinusoidal_t2t model.d_model=511 model.d_k=64 | model.d_model=511 is odd
    Use 512, or model.positions='learned'
model.positions=rotary model.d_k=63 | 'rotary' turns pairs of features, and d_k=63 is odd
    an even model.d_k
model.positions=rotary model.score=additive | model.positions='rotary' with model.score='additive'
    Use model.score='scaled_dot'
model.relative_values=False model.positions=contextual | model.relative_values=False changes nothing
    Set model.positions='relative'
LEARNED model.max_positions=100 | model.max_positions=100 is too small for data.max_length=128
    lower the second
LEARNED model.max_positions=200 | =200 is too small for train.row_length=256
    too small for decode.max_length=512
DIFFERENTIAL model.num_heads=7 model.d_k=64
    'differential' subtracts in pairs of heads, and model.num_heads=7 is odd | Use 8
model.cross_normalizer=differential model.num_key_heads=4
    model.num_key_heads=4 they would have the same values | Use model.num_key_heads=None
model.attention_memory=coverage model.normalizer=sparsemax | 'coverage' has its own softmax
    model.cross_normalizer='softmax'
model.output=copy model.cross_normalizer=sink | model.output='copy' reads attention as probabilities
    'sink' may not sum to 1
model.output=copy model.cross_normalizer=differential | ='copy' | 'differential' may be negative
model.output=copy model.cross_normalizer=talking_heads | ='copy' | 'talking_heads' may be negative
model.output=marginal model.cross_normalizer=differential | ='marginal' | may be negative
# Reading while translating.
model.wait_k_max=3 | model.wait_k_max=3 | model.wait_k=None is not | from 1 to 3
model.wait_k=4 model.wait_k_max=3 | model.wait_k_max=3 | model.wait_k=4 is not | from 1 to 3
# All subwords at once.
model.parallel=ctc | model.parallel='ctc' writes all subwords at once | Set decode.method='ctc'.
model.parallel=ctc decode.method=sample | Set decode.method='ctc', without --sample
decode.method=ctc | a model that was trained with model.parallel='ctc' | Leave it out
CTC model.decoder=ssru | model.parallel='ctc': a decoder of kind ssru has no self-attention
CTC model.watched_layer=0 | model.watched_layer=0 changes nothing in this model | Leave it out
CTC train.coverage_weight=1.0 | no attention that something else reads. Leave it out
CTC LEARNED model.max_positions=300 | =300 is too small for data.max_length=128
    at 100 source positions of 3 states each
train.objective=back_translation | between two languages | texts have 0 codes
FILES data.train=('a@en','b@fr') data.valid=('v',) train.objective=back_translation
    data.valid=v has 1 texts without
FILES data.train=('a@en','b@fr','c') train.objective=back_translation
    has 1 texts without, and all texts have 2 codes
FILES LEARNED ALONE model.max_positions=256 | at least train.row_length + 1 = 257
FILES ALONE model.code_in_decoder=True | makes sources of targets
# Vocabulary and text.
vocabulary.separate=True model.tie_embeddings=False model.output=copy | vocabulary.separate=True has
    model.output='copy' needs one | Use another output
model.tie_output=True | model.tie_output=True changes nothing | Leave it out
vocabulary.dropout=0.1 vocabulary.kind=unigram | vocabulary.dropout=0.1 skips | Use vocabulary.kind
data.source=parquet | data.source='parquet' needs | --config.data.path=FOLDER
data.source=tfds | data.name is not set | --config.data.name=wmt14_translate
FILES data.directions=('en-de','de-en') data.train=('train:de-en',)
    data.directions: no text of data.train has en-de. Name one, or leave it out
data.tgt=fr | data.tgt='fr' | 'en' and 'de' | data.source='files'
data.src=de | data.src='de', data.tgt='de': the built-in corpus is in
data.src=en,fr | data.src='en,fr' | the built-in corpus is in 'en' and 'de'
FILES data.src=de | data.src='de', data.tgt='de' must be two different suffixes
FILES data.src= | model.encoder='transformer' and data.src='' do not go together
FILES data.tgt= | data.tgt='' must be two different suffixes
FILES data.src=en, | data.src='en,' | 'de,fr' and 'en'
FILES data.src=en,en | data.src='en,en' | must be two different
FILES data.tgt=de,fr | data.tgt='de,fr' must be two different
TWO data.tgt=fr | data.src='en,fr', data.tgt='fr' must be two different
data.train=() | data.train is empty | ('train',)
data.train=('a,b',) | data.train=a,b: 'a,b' names no split | --config.data.train=A,B
data.valid=, | data.valid=: '' names no split
data.test=('a,b',) | data.test=a,b: 'a,b' names no split | --config.data.test=A,B
data.train=train,valid | data.train='valid' and the validation text 'valid' share pairs | data.valid
FILES data.valid=train[:9] | data.train='train' and the validation text 'train[:9]' share pairs
FILES data.train=a,b[:9] data.valid=b[8:]
    data.train='b[:9]' and the validation text 'b[8:]' share pairs
data.max_length=257 | data.max_length=257 is above train.row_length=256 | Lower
decode.tokens_per_batch=511 | decode.tokens_per_batch=511 is below decode.max_length
# Several source sentences.
model.sources=2 | model.sources=2 | the text has 1 source sentences (en) | Set model.sources=1
TWO model.sources=3 | model.sources=3 | Set model.sources=2
model.combination=parallel | model.combination='parallel' changes nothing
TWO AGREEING | train.agreement_weight=0.0 do not go together
AGREEING train.patience=3 | weight=0.0 and train.patience=3 do not go together
TWO LINKED | data.src='en,fr' and data.alignments=True do not go together | Leave one
FILES data.src=wavs data.src_kind=speech model.features=320 data.masked_bands=1 | =1 hides nothing
FILES data.src=wavs data.src_kind=speech model.features=320 data.masked_bands=81
    data.masked_bands=81 is above data.mel_bands=80
# The learning rate, and names.
train.warmup_steps=0 | train.warmup_steps=0 | at least 1
train.warmup_steps=0 train.peak_learning_rate=0.001 | train.warmup_steps=0
train.warmup_steps=0 train.schedule=linear train.decay_steps=9 | train.warmup_steps=0
    or set train.peak_learning_rate
train.schedule=linear | train.decay_steps=None | usually to train.steps=100000
train.schedule=cosine train.decay_steps=4000
    train.decay_steps=4000 must be above train.warmup_steps=4000 | 'cosine'
train.init_from= | train.init_from='' | a run's folder
train.wandb_project= | train.wandb_project='' | Give its name, or None
# Losses on attention.
train.alignment_weight=0.1 | train.alignment_weight=0.1 needs | data.alignments=True
train.avoidance_weight=0.1 | train.avoidance_weight=0.1 needs | data.alignments=True
FULL model.decoder=ssru | a decoder of kind ssru has no self-attention that
FULL model.positions=t5 | 't5' has one bias for all target positions after
LINKED DIFFERENTIAL | alignment_weight=0.1: weights of the normalizer 'differential' may be negative
DIFFERENTIAL data.alignments=True train.coverage_weight=0.1 | coverage_weight=0.1: weights of the
DIFFERENTIAL data.alignments=True train.avoidance_weight=0.1 | avoidance_weight=0.1: weights of the
DIFFERENTIAL data.alignments=True train.fertility_weight=0.1 | fertility_weight=0.1: weights of the
DIFFERENTIAL data.alignments=True train.agreement_weight=0.1 | agreement_weight=0.1: weights of the
DIFFERENTIAL decode.coverage_penalty=0.1 | decode.coverage_penalty=0.1: weights of the normalizer
# Two passes, and drawn attention.
CONSISTENT model.dropout=0.0 | train.consistency_weight=5.0 compares two dropout masks
    Set model.dropout
DRAWN model.decoder=recurrent | 'reinforce': | no heads
DRAWN model.decoder=convolutional | 'reinforce': | no heads
DRAWN model.cross_normalizer=gumbel | 'reinforce': | 'gumbel' of | cross_normalizer='softmax'
DRAWN model.cross_normalizer=monotonic | 'reinforce': | 'monotonic' of | cross_normalizer='softmax'
DRAWN model.cross_normalizer=chunkwise | 'reinforce': | 'chunkwise' of | cross_normalizer='softmax'
DRAWN model.cross_normalizer=lookback | 'reinforce': | 'lookback' of | cross_normalizer='softmax'
DRAWN model.normalizer=sink | 'reinforce': | 'sink' may not sum to 1 | ='softmax'
# Search.
decode.groups=3 | decode.beam_size=4 is not a multiple of decode.groups=3 | =6
decode.samples=5 decode.method=sample | decode.samples=5 | method='mbr'
decode.beam_size=5 decode.method=mbr | decode.beam_size=5 | method='beam'
# No encoder-decoder attention: the source is the decoder's prefix, or there is none.
PREFIX model.decoder=ssru | model.decoder='ssru' replaces self-attention
PREFIX model.decoder=recurrent | model.decoder='recurrent' has none
PREFIX model.positions=alibi | with model.positions='alibi': target positions count on
PREFIX LEARNED | Use sinusoidal, rotary or none
PREFIX model.window=5 | with model.window=5: each position sees the whole source
PREFIX model.pattern=strided | with model.pattern='strided'
PREFIX BOTH model.num_encoder_layers=2 | model.sources=2 changes | encoder_layers=2 changes
PREFIX model.cross_score=dot | there is no encoder-decoder attention
PREFIX model.output=copy | model.encoder='prefix' has no encoder-decoder attention
PREFIX train.coverage_weight=1.0 | train.coverage_weight=1.0: model.encoder='prefix'
PREFIX model.wait_k=2 | model.wait_k=2
PREFIX model.norm=deep | model.norm='deep' has constants
NO_SOURCE data.src=de | model.encoder='none' and data.src='de' do not go together
NO_SOURCE model.decoder=recurrent | model.decoder='recurrent' attends to an encoder
NO_SOURCE model.tie_embeddings=False model.tie_output=True | model.tie_embeddings=False
NO_SOURCE model.output=copy | no encoder-decoder attention. Use another
NO_SOURCE train.coverage_weight=1.0 | train.coverage_weight=1.0: model.encoder='none'
NO_SOURCE DRAWN | train.hard_attention='reinforce': model.encoder
NO_SOURCE model.cross_score=dot model.sources=2 | cross_score='dot' changes | sources=2 changes
NO_SOURCE vocabulary.separate=True | is for two sides: a language model has one. Leave
NO_SOURCE model.wait_k=2 | model.wait_k=2
NO_SOURCE train.valid_bleu=True | train.valid_bleu=True do not go together: nothing is
NO_SOURCE AGREEING | data.src='' and train.agreement_weight=0.0
# Kinds of layers and of positions, and pictures.
model.encoder=convolutional model.kernel_width=4 | kernel_width=4 is even: | Use 5
model.norm=deep model.encoder=recurrent | model.norm='deep' has constants for a Trans
model.norm=deep model.decoder=convolutional | model.norm='deep' has constants
model.norm=rezero model.norm_kind=scale | model.norm_kind='scale' changes nothing
model.norm=rezero model.norm_epsilon=1e-5 | model.norm_epsilon=1e-05 changes nothing
model.fix_norm=True model.tie_embeddings=False | fix_norm=True | Set model.tie_embeddings
model.wait_k=3 model.encoder=recurrent | =3 is for attention | not for an encoder of kind
model.wait_k=3 model.encoder=synthesizer | =3 is for attention | not for an encoder of kind
model.wait_k=3 model.decoder=convolutional | =3 is for attention | not for an encoder of kind
model.positions=relative model.score=additive | relative' with model.score='additive' | Use
model.positions=relative model.score=bilinear | relative' with model.score='bilinear' | Use
model.positions=relative model.score=cosine | relative' with model.score='cosine' | Use
model.positions=contextual model.score=additive | contextual' with model.score='additive' | Use
PICTURES model.features=4 | Set model.features=256
PICTURES data.src_kind=text | Set model.features=0
PICTURES data.test=test@tag | a tag begins a source line of text
PICTURES data.train=train@tag | a tag begins a source line of text
# Texts with directions, tags and weights.
FILES data.train=a:en-de | name its direction in data.directions too: en-de
FILES data.train=a:en-fr data.directions=en-de | is none of data.directions=en-de
FILES data.directions=en | expected SRC-TGT
FILES data.directions=de-de | expected SRC-TGT
FILES data.directions=en-de,en-de | twice
FILES data.train=a*0 | the weight 0 leaves the text out
FILES data.valid=b*2 data.train=b*1001 | data.valid=b*2: a weight | the weight 1001 is above
FILES data.valid=b:en-fr data.directions=en-de | the model learns no such target
FILES data.directions=en-de data.src=fr | data.src='fr' changes nothing beside data.dir
FILES data.src=en,\xa0fr | leave the spaces out
FILES data.src=a,b data.src_kind=speech | several sources are text
FILES data.train=a@de data.directions=en-de | the tag de is also a target
FILES data.temperature=2.0 | has nothing to mix
FILES data.test=test@x | no text of data.train has the tag x
FILES data.train=a,b@bt data.alignments=True | links count words without it
FILES data.train=a@bt data.valid=a[:3] | share pairs
FILES data.directions=en-de train.agreement_weight=0.1 | trains both directions as two models
data.directions=en-fr | is in 'en' and 'de'
# Sentences before a source sentence.
TWO model.sources=2 data.context=1 | are of one source language
FILES model.sources=2 data.src= data.context=1 | are of one source language
FILES model.sources=2 data.context=2 | model.sources=2, and the text has 3 source sentences
"""

# Settings that are just inside the limits above.
FINE = """
model.num_heads=7 model.d_k=64
LEARNED model.d_model=511 model.d_k=64
model.positions=sinusoidal_t2t model.d_model=4 model.num_heads=1
model.positions=rotary model.d_k=2 model.cross_score=additive
model.wait_k=3 model.wait_k_max=3
model.wait_k=3 model.cross_normalizer=gumbel
model.watched_heads=8
model.attended_keys=4 model.cross_normalizer=top_k
model.relative_distance=4 model.positions=contextual
model.normalizer=sink train.coverage_weight=0.1
model.normalizer=sink model.decoder=recurrent model.output=copy
model.normalizer=sink model.output=marginal
DIFFERENTIAL model.cross_normalizer=softmax model.output=copy decode.coverage_penalty=0.1
DIFFERENTIAL model.num_key_heads=8
FULL model.positions=alibi
FULL model.positions=kerple
FULL model.positions=rotary
FULL model.positions=contextual
CONSISTENT model.dropout=0.0 model.attention_dropout=0.1
CONSISTENT model.dropout=0.0 model.activation_dropout=0.1
LEARNED model.max_positions=128 train.row_length=128 decode.max_length=128
data.src=de data.tgt=en data.valid=valid
FILES data.train=b[9:] data.valid=b[:9],c
data.max_length=256
train.schedule=linear train.decay_steps=4001
train.schedule=constant train.warmup_steps=0 train.peak_learning_rate=0.001
mesh.data=1 mesh.tensor=-1
decode.tokens_per_batch=512
PREFIX
NO_SOURCE
PICTURES
""".strip().splitlines()


def config_of(settings: str) -> Config:
    """The config with settings KEY=VALUE, as the command line has them, and words of WORDS."""
    for word, meaning in WORDS.items():
        settings = re.sub(rf"\b{word}\b", meaning, settings)
    _, values = split_overrides([f"--config.{one}" for one in re.findall("[^ ]+", settings)])
    return with_values(Config(), GOOD | values)


@pytest.mark.parametrize("case", of_table(BAD), ids=" ".join)
def test_check_names_key_value_and_fix(case):
    settings, *words = case
    with refused(ConfigError, *words):
        check(config_of(settings), KEYS)


@pytest.mark.parametrize("name", ["model.wait_k", "model.sources"])
def test_what_reads_the_source_in_order_excludes_every_monotonic_normalizer(name):
    """The config names them, since it does not import the model."""
    every = {f"model.cross_normalizer={kind}" for kind in MONOTONIC}
    assert every == {setting for setting in KEYS[name].excludes if "=" in setting}


EXCLUDING = [(name, other) for name, key in KEYS.items() for other in key.excludes]


@pytest.mark.parametrize(("name", "other"), EXCLUDING)
def test_keys_that_exclude_each_other_are_both_named_with_the_reason(name, other):
    reason = KEYS[name].excludes[other]
    other, _, value = other.partition("=")
    values = {one: other_value(one, KEYS[one].default) for one in (name, other)}
    values |= {other: value} if value else {}
    both = " and ".join(f"{one}={value!r}" for one, value in values.items())
    with refused(ConfigError, f"{both} do not go together: {reason}. Leave"):
        check(with_values(Config(), GOOD | values))


# What makes settings that hold by default hold no longer.
AT_ONCE = {"decode.method": "ctc", "model.parallel": "ctc"}
OTHERWISE = {"decode.method=beam": AT_ONCE, "data.source=grammar": FILES}
READ = [name for name, key in KEYS.items() if key.read_with]


@pytest.mark.parametrize("name", READ)
def test_a_key_that_nothing_reads_names_the_setting_with_which_it_is_read(name):
    first = KEYS[name].read_with[0]
    value = other_value(name, KEYS[name].default)
    setting = re.sub("=(.*)", r"='\1'", first)
    otherwise = OTHERWISE.get(first, {})
    fix = f"Set {setting}, with which it is read"
    if otherwise is AT_ONCE:
        fix = "With model.parallel='ctc' nothing reads it"
    want = f"{name}={value!r} changes nothing here. {fix}"
    with refused(ConfigError, want):
        check(with_values(Config(), GOOD | otherwise | {name: value}), KEYS)


@pytest.mark.parametrize("settings", ["", *FINE])
def test_check_allows_values_just_inside_the_limits(settings):
    check(config_of(settings), KEYS)


def ends_of(key: Key) -> tuple[list[Any], list[Any]]:
    """The values at the ends of a number's range, and those just outside."""
    if key.kind is int:
        low, high = key.at_least, key.at_most or 2**31 - 1
        return [low, high], [low - 1, high + 1]
    high = key.below or 3.4e38
    if key.above is None:
        return [key.at_least, 0.999 * high], [key.at_least - 0.001, high]
    return [key.above + 1e-9, 0.999 * high], [key.above, high]


NUMBERS = [name for name, key in KEYS.items() if key.kind in (int, float)]


@pytest.mark.parametrize("name", [name for name in NUMBERS if not name.startswith("mesh.")])
def test_numbers_end_where_the_schema_says(name):
    """docs/keys.md, which a test compares with the schema, has the ends of every key."""
    inside, outside = ends_of(KEYS[name])
    for value in inside:
        check_values(with_values(Config(), {name: value}))
    for value in outside:
        config = with_values(Config(), {name: value})
        problem = re.escape(f"{name}={value_at(config, name)} is ")
        with pytest.raises(ConfigError, match=f"^{problem}(below|above|not in)"):
            check_values(config)


def test_an_old_run_may_have_settings_that_nothing_reads():
    check(with_values(Config(), GOOD | {"data.train": ("train[:9]",), "model.stride": 4}))


def test_what_reads_a_key_is_a_setting_that_there_is():
    assert len(READ) >= 30 and len(EXCLUDING) >= 25
    readers = [reader for key in KEYS.values() for reader in (*key.read_with, *key.excludes)]
    for reader in readers:
        name, has_value, value = reader.partition("=")
        assert not has_value or value in KEYS[name].valid_choices()


def test_check_names_everything_that_is_wrong():
    with pytest.raises(ConfigError, match=r"model.dropout=2.0.*train.steps=0"):
        check(with_values(Config(), {"model.dropout": 2.0, "train.steps": 0}))
