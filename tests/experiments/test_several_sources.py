"""Several sentences as the source, or several languages: what is read, and what is measured."""

import gzip
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import documents, languages, several_sources
from experiments.debates import CONTROL, FLAT, JOINED, RULES, SPLITS, ways, write_text
from experiments.documents import Document, found_noun, of_other_gender, share_right, splits
from experiments.judging import FAILS, HOLDS
from experiments.languages import FOUR, LONG, ROWS, SPLIT, language_finder, of_directions
from experiments.several_sources import WAYS, by_way, together
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, configs_of, verdicts_on
from transformer_jax.config.data import DataConfig
from transformer_jax.config.texts import slice_of
from transformer_jax.decoding.lines import Translation
from transformer_jax.decoding.scoring import Forced
from transformer_jax.evaluation.attention import Attention
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import parameter_count
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.folder_corpus import Pair

# Several sources ---------------------------------------------------------------------------------


def test_a_sentence_is_replaced_by_that_of_the_next_caption_or_by_none():
    found = {name: way(("a", "b"), ("x", "y")) for name, way in WAYS.items()}
    assert {name: [list(side) for side in both] for name, both in found.items()} == {
        "both right": [["a", "b"], ["x", "y"]],
        "wrong French": [["a", "b"], ["y", "x"]],
        "wrong German": [["b", "a"], ["x", "y"]],
        "no French": [["a", "b"], ["", ""]],
        "no German": [["", ""], ["x", "y"]],
    }


def test_all_rows_have_the_same_number_of_parameters():
    configs = configs_of(several_sources.EXPERIMENT, "short").values()
    sizes = [parameter_count(make_model(config.model, 6_000)) for config in configs]
    assert max(sizes) < 1.01 * min(sizes)


def test_each_way_is_scored_with_the_same_references(monkeypatch):
    asked = []

    def evaluate(sources, references):
        asked.append((sources, references))
        return SimpleNamespace(bleu=float(len(asked)))

    config = SimpleNamespace(data=SimpleNamespace(src="de,fr"))
    loaded = SimpleNamespace(translator=SimpleNamespace(params={"a": np.zeros(7)}))
    run = SimpleNamespace(config=config, loaded=loaded, evaluate=evaluate)
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    scored = (30.0, ["a\tx", "b\ty"], ["r", "s"])
    monkeypatch.setattr(several_sources, "scored", lambda job: scored)
    found = by_way(SimpleNamespace(folder=None))  # type: ignore[arg-type]
    assert found["parameters"] == 7 and found["no German"] == 5.0
    assert asked[1] == (["a\ty", "b\tx"], ["r", "s"])
    assert asked[4] == (["\tx", "\ty"], ["r", "s"])


def test_two_models_take_the_translation_with_the_highest_mean_score(monkeypatch):
    """Of "a cat runs away", which the first finds, and "a dog runs away", which both like more."""
    texts = {"first": ["a cat runs away", "a dog runs away"], "second": ["a dog runs away"]}
    liked = {"first": {"a cat runs away": -1.0}, "second": {"a cat runs away": -9.0}}

    def run(name):
        def score(sources, targets):
            assert sources == [f"source of {name}"] * len(targets)
            return [Forced(liked[name].get(text, -2.0), 0.0, 3) for text in targets]

        best = [[Translation(text, 0.0) for text in texts[name]]]
        return SimpleNamespace(n_best=lambda sources, n: best, score=score)

    monkeypatch.setattr("transformer_jax.api.load", run)

    def scored(job):
        return 0.0, [f"source of {job.folder}"], ["a dog runs away"]

    monkeypatch.setattr(several_sources, "scored", scored)
    jobs = [SimpleNamespace(folder=name) for name in texts]
    assert together(*jobs) == {"both right": pytest.approx(100)}  # type: ignore[arg-type]


# Documents ---------------------------------------------------------------------------------------

TABLE = Document(
    ("The farmer buys the table .", "The boy sees it ."),
    ("Der Bauer kauft den Tisch .", "Der Junge sieht ihn ."),
    "farmer",
    "table",
    "m",
    "ihn",
)


@pytest.fixture
def few_documents(monkeypatch):
    """Documents that are made in no time."""
    monkeypatch.setattr(documents, "SIZES", {"train": 300, "valid": 20, "test": 60})
    splits.cache_clear()
    yield
    splits.cache_clear()


def test_test_documents_have_words_together_that_training_never_shows(few_documents):
    text = splits()
    shown = {(one.person, one.noun) for one in text["train"]}
    assert not shown & {(one.person, one.noun) for one in text["test"]}
    assert {one.noun for one in text["test"]} <= {one.noun for one in text["train"]}
    genders = [one.gender for one in text["test"]]
    assert min(map(genders.count, "mfn")) > 10
    for one in text["test"]:
        pronouns = [
            word for word in one.de[1].lower().split() if word in ("er", "sie", "es", "ihn")
        ]
        assert pronouns == [one.pronoun] and one.noun in one.en[0].split()
        assert share_right([one.de[1]], [one.pronoun]) == 1


def test_a_pronoun_counts_if_it_is_the_only_one():
    lines = ["Er ist alt .", "Der Junge sieht ihn .", "Sie ist er .", "Der Junge .", "Es ist alt ."]
    assert share_right(lines, ["er", "ihn", "er", "er", "sie"]) == 0.4


def test_the_wrong_sentence_has_another_gender(few_documents):
    test = splits()["test"]
    assert all(a.gender != b.gender for a, b in zip(test, of_other_gender(test), strict=True))


def test_the_text_is_read_in_documents(few_documents, tmp_path):
    documents.write_text(tmp_path)
    data = DataConfig(path=str(tmp_path), context=1)
    pairs = open_corpus(data).split("test")
    first = splits()["test"][0]
    assert pairs[0] == (f"{first.en[0]}\t", first.de[0])
    assert pairs[1] == (f"{first.en[1]}\t{first.en[0]}", first.de[1])
    assert len(pairs) == 120


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("best, found", [("▁ta", True), ("ble", True), ("▁farmer", False)])
def test_attention_finds_the_noun_if_its_largest_weight_there_is_on_it(several, best, found):
    """The second sentence, which comes first, may have larger weights."""
    between = ["</s>"] if several else []
    attended = ["▁The", "▁boy", "▁sees", "▁it", "▁.", *between]
    attended += ["▁The", "▁farmer", "▁buys", "▁the", "▁ta", "ble", "▁.", "</s>"]
    attending = ["▁Der", "▁Junge", "▁sieht", "▁ihn", "▁.", "</s>"]
    weights = np.full((2, 2, len(attending), len(attended)), 0.01)
    weights[1, :, 3, 3] = 0.6
    weights[1, :, 3, attended.index(best)] = 0.2
    cross = Attention(weights, attending, attended, (1, 2))
    assert found_noun(cross, TABLE) is found
    unknown = Attention(weights, ["▁i", "hn"], attended, (1, 2))
    assert found_noun(unknown, TABLE) is None


def test_shares_are_measured_with_each_first_sentence(few_documents, monkeypatch):
    asked = []

    def translate(lines):
        asked.append(lines)
        return ["Er ist alt ."] * len(lines)

    run = SimpleNamespace(
        config=SimpleNamespace(data=SimpleNamespace(context=1)),
        translate=translate,
        attention=lambda source, target: SimpleNamespace(kinds={"cross": (source, target)}),
    )
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    monkeypatch.setattr(documents, "found_noun", lambda cross, document: cross[1] == document.de[1])
    found = documents.pronouns_of(SimpleNamespace(folder=None))  # type: ignore[arg-type]
    test = splits()["test"]
    share = sum(one.pronoun == "er" for one in test) / len(test)
    assert found["right"] == found["wrong"] == found["none"] == share and found["finds"] == 1
    assert asked[0][0] == f"{test[0].en[1]}\t{test[0].en[0]}"
    assert asked[2][0] == f"{test[0].en[1]}\t" and asked[1] != asked[0]


# Debates -----------------------------------------------------------------------------------------


def test_the_control_has_a_line_of_the_same_text_beside_each(tmp_path):
    for name, _ in SPLITS.values():
        for suffix in ("en", "it", "doc"):
            lines = "".join(f"{suffix} {n}\n" for n in range(40))
            (tmp_path / f"{name}.{suffix}.gz").write_bytes(gzip.compress(lines.encode()))
    write_text(tmp_path / "text", tmp_path)
    for stem in SPLITS:
        own, other = (
            (tmp_path / "text" / f"{stem}.{suffix}").read_text().splitlines()
            for suffix in ("en", "other")
        )
        assert own != other and sorted(own) == sorted(other) and len(own) == 40
    test = dict(ways([f"{line}\tb" for line in own]))
    assert stem == "test" and test["none"] == [f"{line}\t" for line in own]
    assert test["random"] == [f"{line}\t{one}" for line, one in zip(own, other, strict=True)]


def test_debates_verdicts():
    own = {"no context": [10, 11], JOINED: [12, 13.1], FLAT: [10.5, 11.6], CONTROL: [11, 12.1]}
    other = {JOINED: [9, 10], FLAT: [10.4, 11.5]}
    found = {}
    for row, bleu in own.items():
        pairs = zip(bleu, other.get(row, bleu), strict=True)
        found |= by_seed(row, [{"own": one, "random": another} for one, another in pairs])
    assert verdicts_on(RULES, found, JOINED) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(RULES, found, FLAT)[1:] == [FAILS, FAILS]
    assert verdicts_on(RULES, found, CONTROL) == [HOLDS, "", ""]


# Several languages -------------------------------------------------------------------------------


def test_the_language_of_a_line_is_that_of_its_words():
    find = language_finder({"en": ["the dog", "a cat"], "de": ["der Hund", "eine Katze, the"]})
    assert [find(line) for line in ("the dog", "der HUND", "Katze the der", "cat")] == [
        "en",
        "de",
        "de",
        "en",
    ]


def test_without_common_text_no_caption_is_in_three_languages():
    texts = [one.rpartition(":") for one in ROWS[SPLIT]["data.train"]]
    of_german = {slice_of(stem)[1:] for stem, _, direction in texts if "de" in direction}
    of_french = {slice_of(stem)[1:] for stem, _, direction in texts if "fr" in direction}
    assert of_german == {(0, 14_500)} and of_french == {(14_500, float("inf"))}
    long = configs_of(languages.EXPERIMENT, "full", (FOUR, LONG))
    assert long[LONG].train.steps == long[LONG].train.decay_steps == 4 * long[FOUR].train.steps


def test_each_direction_is_translated_from_its_source_and_scored_with_its_references(
    tmp_path, monkeypatch
):
    known = {"de": "Hund", "en": "dog", "fr": "chien"}
    texts = {name: [f"{word} {i} {word}" for i in "12"] for name, word in known.items()}
    asked = []

    def translated(sources):
        """Right, but from French it writes French where German is asked for: off target."""
        found = []
        for line in sources:
            target, text = line[2:4], line.partition("<< ")[2]
            word = known["fr" if target == "de" and "chien" in text else target]
            found.append(f"{word} {text.split()[1]} {word}")
        return found

    def evaluate(folder, split):
        src, tgt = split.removeprefix("test:").split("-")
        sources = [f">>{tgt}<< {line}" for line in texts[src]]
        path = runs.write_lines(tmp_path / "hypotheses", translated(sources))
        scores = SimpleNamespace(bleu=f"BLEU of {split}")
        pairs = [Pair(*pair) for pair in zip(sources, texts[tgt], strict=True)]
        return SimpleNamespace(scores=scores, hypotheses=path, pairs=pairs)

    def pivot(sources, references):
        asked.append((sources, references))
        return SimpleNamespace(bleu=float(translated(sources) == references))

    data = SimpleNamespace(directions=languages.TRAINED, path=None)
    config = SimpleNamespace(data=data)
    run = SimpleNamespace(config=config, translate=translated, evaluate=pivot)
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluate)
    monkeypatch.setattr(languages, "finder_of", lambda folder: language_finder(texts))
    found = of_directions(make_jobs(languages.EXPERIMENT, "short", tmp_path)[0])
    assert found["bleu"]["de-fr"] == "BLEU of test:de-fr" and len(found["bleu"]) == 6
    assert found["off_target"] == {d: float(d == "fr-de") for d in found["bleu"]}
    assert found["pivot"] == {"de-fr": 1.0, "fr-de": 1.0}
    assert found["finder_error"] == {"en": 0, "de": 0, "fr": 0}
    assert asked[0] == ([">>fr<< dog 1 dog", ">>fr<< dog 2 dog"], texts["fr"])
