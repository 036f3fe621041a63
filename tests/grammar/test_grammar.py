"""The built-in corpus: properties of every sentence, of the splits and of the lexicon."""

import gzip
import hashlib
import itertools
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

import grammar
from grammar import __main__ as command
from grammar import combinations, german, pairs
from grammar.constructions import REGISTRY
from grammar.lexicon import ADJECTIVES, NOUNS, PREPOSITIONS, VERBS
from grammar.words import COMMENTS, TIMES
from transformer_jax.errors import DataError
from transformer_jax.text import built_in_corpus
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.use.command_line import exit_status

pytestmark = pytest.mark.slow("nothing but the folder grammar changes these")

ENOUGH = 4_000
# SHA-256 of the first 300 pairs with their words, alignments and constructions.
DIGESTS = {
    "train": "500c3f9a70c69a75acebb909a7f2071e08546dacb9f2e4684ab33f0ec6ba3478",
    "valid": "cc46b1f5d79ff1080b151f6a43f284a1d095e38b2c328960ede1cc0eea37ad88",
    "test": "74dc015849db0e17b072957bea39cc77d27eab224405ea7914bd2d9e3a9712ba",
}


@pytest.fixture(scope="module")
def long_train():
    return grammar.generate("train", 20_000)


@pytest.fixture(scope="module")
def train(long_train):
    return long_train[:ENOUGH]


@pytest.fixture(scope="module")
def drafts():
    """Pairs and their draws, of each split."""
    return {split: list(islice(pairs.drafts(split, 0), 600)) for split in combinations.SPLITS}


# Reproducible


def test_prefixes_agree(train):
    assert grammar.generate("train", 50) == train[:50]
    assert grammar.generate("train", 50, seed=1) != train[:50]


def test_the_hash_seed_of_the_process_does_not_matter(train):
    script = (
        "import grammar\n"
        "print([(p.src, p.tgt, p.alignment) for p in grammar.generate('train', 300)])"
    )
    for seed in ("1", "4711"):
        variables = {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": ":".join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, **variables},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        )
        assert run.stdout.strip() == str([(p.src, p.tgt, p.alignment) for p in train[:300]])


def test_the_order_of_the_constructions_does_not_matter(train):
    first = next(iter(REGISTRY))
    REGISTRY[first] = REGISTRY.pop(first)
    assert list(REGISTRY)[-1] == first
    assert grammar.generate("train", 50) == train[:50]


@pytest.mark.parametrize("split", DIGESTS)
def test_the_corpus_is_the_recorded_one(split):
    """Recorded runs and tables depend on it: after a change they belong to another corpus."""
    digest = hashlib.sha256()
    for pair in grammar.generate(split, 300):
        digest.update(repr(tuple(pair)).encode())
    assert digest.hexdigest() == DIGESTS[split]


@pytest.mark.parametrize("split", DIGESTS)
def test_the_package_has_what_the_grammar_writes(split):
    want = [pair[:-1] for pair in grammar.generate(split, 300)]
    assert [pair[:-1] for pair in built_in_pairs(split, 300)] == want


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out=new", "--train=-5"], "--train=-5 is below 0"),
        (["--out=full"], "--out=full is not empty. Name a new folder"),
        (["--out=full/file/new"], "full/file is a file"),
        (["--out=/proc/grammar", "--train=1", "--valid=1", "--test=1"], "/proc/grammar"),
    ],
)
def test_a_folder_or_number_that_cannot_be_is_one_line(
    flags, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert exit_status(lambda: command.main(flags)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_the_command_writes_the_files_of_the_package(tmp_path):
    sizes = ["--train=20", "--valid=9", "--test=9"]
    command.main([f"--out={tmp_path / 'packed'}", *sizes])
    package = Path(built_in_corpus.__file__).parent
    for split in DIGESTS:
        name = f"built_in_{split}.tsv.gz"
        stored = gzip.open(package / name, "rt")
        written = gzip.open(tmp_path / "packed" / name, "rt")
        lines = written.readlines()
        assert len(lines) == (20 if split == "train" else 9)
        assert lines == list(islice(stored, len(lines)))
    command.main([f"--out={tmp_path / 'text'}", "--text", *sizes])
    lines = [
        (tmp_path / "text" / f"test.{suffix}").read_text("utf-8").split("\n")
        for suffix in ("en", "de", "align")
    ]
    first = grammar.generate("test", 1)[0]
    links = " ".join(f"{i}-{j}" for i, j in first.alignment)
    sides = [" ".join(words) for words in (first.src_words, first.tgt_words)]
    assert [line[0] for line in lines] == [*sides, links]
    assert list(map(len, lines)) == [10] * 3


def test_an_unknown_split_is_refused():
    with pytest.raises(DataError, match='no split "dev"; it has train, valid, test'):
        grammar.generate("dev", 1)


# One translation each


def test_every_english_sentence_has_one_translation(train, drafts):
    held_out = [pair for drawn in drafts.values() for pair, _ in drawn]
    other = grammar.generate("train", ENOUGH, seed=1)
    translations: dict[str, set[str]] = {}
    for pair in [*train, *other, *held_out]:
        translations.setdefault(pair.src, set()).add(pair.tgt)
    assert [src for src, tgts in translations.items() if len(tgts) > 1] == []


def test_no_sentence_comes_twice(train):
    assert len({pair.src for pair in train}) == len(train)


# Splits


def test_training_shows_no_combination_of_another_split(drafts):
    for _, draw in drafts["train"]:
        assert {combinations.bucket(*c) for c in draw.combinations} <= {"train"}


@pytest.mark.parametrize("split", ["valid", "test"])
def test_every_held_out_sentence_shows_a_combination_of_its_split_alone(drafts, split):
    for pair, draw in drafts[split]:
        buckets = {combinations.bucket(*c) for c in draw.combinations}
        assert split in buckets and buckets <= {split, "train"}, pair.src


def test_splits_share_no_sentence_whatever_the_seed(train, drafts):
    other = {pair.src for pair in grammar.generate("train", ENOUGH, seed=1)}
    valid, test = ({pair.src for pair, _ in drafts[split]} for split in ("valid", "test"))
    assert not ({pair.src for pair in train} | other) & (valid | test)
    assert not valid & test


def test_held_out_adjectives_are_never_before_their_nouns_in_training(train):
    """Checked in the sentences, not in the random draws."""
    held_out = {
        (adjective.en, form)
        for adjective in ADJECTIVES
        for noun in NOUNS
        if combinations.matches(noun, adjective.kinds)
        and combinations.bucket("adjective", adjective, noun) != "train"
        for form in (noun.en, noun.en_plural)
    }
    assert len(held_out) > 200
    shown = {pair for p in train for pair in zip(p.src_words, p.src_words[1:], strict=False)}
    assert not held_out & shown


def test_held_out_objects_are_never_with_their_verbs_in_training(train):
    """Checked in the imperatives: Please, the verb, and one of the nouns that the verb may have."""
    verbs = {verb.en.base: verb for verb in VERBS if verb.frame == "transitive"}
    nouns = {form: noun for noun in NOUNS for form in (noun.en, noun.en_plural)}
    seen = 0
    for pair in train:
        match = re.match(r"Please (?:do not )?(\w+) ", pair.src)
        verb = verbs.get(match[1]) if match else None
        if verb and not any(v.en.base == verb.en.base and v is not verb for v in VERBS):
            for noun in (nouns[word] for word in pair.src_words if word in nouns):
                if combinations.matches(noun, verb.object):
                    assert combinations.bucket("object", verb, noun) == "train", pair.src
                    seen += 1
    assert seen > 20


def test_words_of_test_are_words_of_training(long_train):
    known = Counter(word for pair in long_train for word in (*pair.src_words, *pair.tgt_words))
    for pair in grammar.generate("test", 500):
        rare = [word for word in (*pair.src_words, *pair.tgt_words) if known[word] < 3]
        assert rare == [], pair.src


def test_buckets_have_their_shares():
    buckets = Counter(
        combinations.bucket("object", verb, noun)
        for verb in VERBS
        for noun in NOUNS
        if combinations.matches(noun, verb.object)
    )
    total = sum(buckets.values())
    assert 0.08 < buckets["test"] / total < 0.12 and 0.03 < buckets["valid"] / total < 0.07


# Every sentence


def test_sentences_are_well_written(train):
    for pair in train:
        for line, words in ((pair.src, pair.src_words), (pair.tgt, pair.tgt_words)):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w' ,ÄÖÜäöüß-]*[^\W_][.?]", line), line
            assert "  " not in line and " ," not in line and ",," not in line, line
            assert re.findall(r"[\w'-]+|[.,?]", line) == list(words), line
            assert 3 <= len(words) <= 26, line
        assert pair.src[-1] == pair.tgt[-1]
    mean = sum(len(pair.src_words) for pair in train) / len(train)
    assert 8 < mean < 10


def test_only_german_nouns_are_capitalized(train):
    nouns = {noun.german(case, plural) for noun in NOUNS for plural in (False, bool(noun.de_plural))
             for case in ("nom", "acc", "dat", "gen")}  # fmt: skip
    names = {noun.de + "s" for noun in NOUNS if noun.proper}
    entries = [entry for group in TIMES.values() for entry in group]
    times = {word for entry in entries for word in entry.de.split()}
    units = {"Tagen", "Wochen", "Monaten", "Jahren", "Stunden", "Jahre", "Uhr", "Euro"}
    capital = nouns | names | units | {w for w in times if w[0].isupper()} | {"Sie"}
    for pair in train:
        for word in pair.tgt_words[1:]:
            assert word[0].isupper() == (word in capital), (word, pair.tgt)


def test_alignments_are_sorted_and_cover_all_but_a_few_kinds_of_words(train):
    for pair in train:
        assert list(pair.alignment) == sorted(set(pair.alignment))
        sources, targets = ({edge[side] for edge in pair.alignment} for side in (0, 1))
        assert sources <= set(range(len(pair.src_words)))
        assert targets <= set(range(len(pair.tgt_words)))
        no_source = {w for i, w in enumerate(pair.src_words) if i not in sources}
        no_target = {w for j, w in enumerate(pair.tgt_words) if j not in targets}
        assert no_source <= ({"a", "an"} if pair.construction == "profession" else set()), pair
        assert no_target <= {",", "Sie"}, pair


# German


def finite_forms(with_prefix: bool) -> set[str]:
    """The finite forms of verbs, whose prefixes are apart or before them, and of auxiliaries."""
    forms = {form for tenses in german.IRREGULAR.values() for f in tenses for form in f.values()}
    for verb in VERBS:
        for past, who in itertools.product((False, True), ("1s", "3s", "1p", "3p")):
            form = verb.de.finite(past, who)
            forms |= {form, verb.de.prefix + form} if with_prefix else {form}
    return forms


def test_the_finite_verb_is_second_behind_what_is_fronted(train):
    finite = finite_forms(with_prefix=False)
    entries = [entry for group in (*TIMES.values(), COMMENTS) for entry in group]
    fronts = {entry.de: len(entry.de.split()) for entry in entries}
    fronts = dict(sorted(fronts.items(), key=lambda item: -item[1]))  # heute Morgen before heute
    seen = 0
    for pair in train:
        for front, length in fronts.items():
            if pair.tgt.lower().startswith(front.lower() + " "):
                assert pair.tgt_words[length] in finite, pair.tgt
                seen += 1
                break
    assert seen > 100


def test_subordinate_clauses_end_in_their_finite_verb(train):
    finite = finite_forms(with_prefix=True)
    seen = 0
    for pair in train:
        match = re.search(r"(?:^|, )(?:weil|obwohl|dass|als|wenn|nachdem|bevor) ([^,.]*)", pair.tgt)
        if match and pair.construction != "comparative":
            assert match[1].split()[-1] in finite, pair.tgt
            seen += 1
    assert seen > 200


def test_subordinate_and_relative_clauses_are_set_off_by_commas(train):
    opens = {"weil", "obwohl", "dass", "ob", "sondern", "aber", "deshalb"}
    infinitive = re.compile(r", (um|ohne|statt) [^,]*(zu \w+|\w+zu\w+)\.$")
    for pair in train:
        for before, word in zip(pair.tgt_words, pair.tgt_words[1:], strict=False):
            assert word not in opens or before == ",", pair.tgt
        if pair.construction.startswith("relative"):
            assert re.search(r", (\w+ )?(d[eia][rnmes]+|de[rs]sen|denen)\b", pair.tgt), pair.tgt
        if pair.construction == "um_zu":
            assert infinitive.search(pair.tgt), pair.tgt


def test_prepositions_have_their_case(train):
    dative = {"mit", "aus", "von", "bei", "zu", "nach"}
    accusative = {"für", "ohne", "durch", "gegen"}
    no_dative = re.compile(r"das|die|des|dies(e|es)|eine?n?|(k|m|s)eine?|ihre|unsere?|ihn|sie|mich")
    no_accusative = re.compile(r"dem|der|diesem|(k|m|s)?eine[mr]|ihre[mr]|unsere[mr]|ihm|mir")
    seen = Counter()
    for pair in train:
        for word, following in zip(pair.tgt_words, pair.tgt_words[1:], strict=False):
            if word in dative:
                assert not no_dative.fullmatch(following), pair.tgt
                seen["dative"] += 1
            if word in accusative:
                assert not no_accusative.fullmatch(following), pair.tgt
                seen["accusative"] += 1
    assert seen["dative"] > 100 and seen["accusative"] > 50


# The lexicon


def test_there_are_entries_and_constructions_enough():
    assert grammar.lexicon_size() >= 400
    assert len(grammar.CONSTRUCTIONS) >= 14
    assert all(description for description in grammar.CONSTRUCTIONS.values())


def test_every_construction_is_drawn(train):
    drawn = Counter(pair.construction for pair in train)
    assert set(drawn) == set(grammar.CONSTRUCTIONS)
    assert min(drawn.values()) > ENOUGH / len(drawn) / 4


def test_kinds_that_are_asked_for_exist():
    known = {noun.en for noun in NOUNS} | {kind for noun in NOUNS for kind in noun.kinds}
    known.add("neutral")
    specs = [verb.subject for verb in VERBS] + [verb.object for verb in VERBS]
    specs += [entry.kinds for entry in (*ADJECTIVES, *PREPOSITIONS.all())]
    asked = {token.removeprefix("-") for spec in specs for token in spec.split()}
    assert asked - known == set()


def test_every_word_has_partners_in_training():
    for verb in VERBS:
        if verb.subject:
            assert len(combinations.partners("subject", verb, "train")) >= 2, verb.name
        if verb.object:
            assert len(combinations.partners("object", verb, "train")) >= 2, verb.name
    for entry in ADJECTIVES:
        assert len(combinations.partners("adjective", entry, "train")) >= 2, entry.en


def test_an_english_word_has_one_german_word():
    """Within a frame: tragen for carry and wear, but never two verbs for one."""
    verbs = Counter((verb.frame, verb.en.whole) for verb in VERBS)
    nouns = Counter(noun.en for noun in NOUNS)
    adjectives = Counter(adjective.en for adjective in ADJECTIVES)
    for counts in (verbs, nouns, adjectives):
        assert [name for name, count in counts.items() if count > 1] == []
