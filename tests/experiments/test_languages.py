"""A line's language is found by its words, and each direction has its own references."""

from types import SimpleNamespace

from experiments import languages
from experiments.languages import (
    EXPERIMENT,
    FOUR,
    LONG,
    ROWS,
    SPLIT,
    language_finder,
    of_directions,
)
from tests import tiny_runs as runs
from tests.experiments.rows import configs_of
from transformer_jax.config.data import slice_of
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.folder_corpus import Pair


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
    long = configs_of(EXPERIMENT, "full", (FOUR, LONG))
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
    found = of_directions(make_jobs(EXPERIMENT, "short", tmp_path)[0])
    assert found["bleu"]["de-fr"] == "BLEU of test:de-fr" and len(found["bleu"]) == 6
    assert found["off_target"] == {d: float(d == "fr-de") for d in found["bleu"]}
    assert found["pivot"] == {"de-fr": 1.0, "fr-de": 1.0}
    assert found["finder_error"] == {"en": 0, "de": 0, "fr": 0}
    assert asked[0] == ([">>fr<< dog 1 dog", ">>fr<< dog 2 dog"], texts["fr"])
