"""Languages are told apart by their words, and each direction is measured with its references."""

from types import SimpleNamespace

import pytest

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
    for stem in ("train", "test"):
        for name, word in {"en": "dog", "de": "Hund", "fr": "chien"}.items():
            runs.write_lines(
                tmp_path / f"{stem}.{name}", [f"{word} {i} {word} {word}" for i in "12"]
            )
    known = {"de": "Hund", "en": "dog", "fr": "chien"}
    asked = []

    def translate(sources):
        """Right, but French is written for German if it comes from French: off target."""
        asked.extend(sources)
        found = []
        for line in sources:
            target, text = line[2:4], line.partition("<< ")[2]
            word = known["fr" if target == "de" and "chien" in text else target]
            found.append(f"{word} {text.split()[1]} {word} {word}")
        return found

    data = runs.tiny_config(
        data__path=str(tmp_path), data__directions=languages.TRAINED, data__valid=("test",)
    ).data
    run = SimpleNamespace(config=SimpleNamespace(data=data), translate=translate)
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    finder = language_finder({name: [word] for name, word in known.items()})
    monkeypatch.setattr(languages, "finder_of", lambda folder: finder)
    found = of_directions(make_jobs(EXPERIMENT, "short", tmp_path)[0])
    assert found["bleu"] == {
        d: pytest.approx(0 if d == "fr-de" else 100, abs=20 if d == "fr-de" else 1e-6)
        for d in (*languages.TRAINED, *languages.ZERO)
    }
    assert found["off_target"] == {d: float(d == "fr-de") for d in found["bleu"]}
    assert found["pivot"] == {"de-fr": pytest.approx(100), "fr-de": pytest.approx(100)}
    assert found["finder_error"] == {"en": 0, "de": 0, "fr": 0}
    assert ">>en<< chien 1 chien chien" in asked and ">>de<< dog 1 dog dog" in asked
