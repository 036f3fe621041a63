"""The `augment` command: the text and its translations, which a killed command goes on writing."""

import gzip
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiny_runs as runs
from tests.commands.test_translate import answers
from tests.fixtures.cases import refused
from transformer_jax.commands import augment as module
from transformer_jax.commands.augment import augment
from transformer_jax.config.data import DataConfig
from transformer_jax.decoding.lines import Translation
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.text.lines import TextLines, file_digest


@pytest.fixture
def text(tmp_path) -> Path:
    return Path(shutil.copy(runs.tiny_corpus() / "test.en", tmp_path / "more.en"))


def written(text: Path, stem: str, **options) -> list[str]:
    """The translations that the command writes."""
    augment(str(runs.trained_run()), text=str(text), output=str(text.parent / stem), **options)
    assert (text.parent / f"{stem}.en").read_bytes() == text.read_bytes()
    return runs.read_lines(text.parent / f"{stem}.de")


@pytest.mark.slow("translates in each way")
def test_it_writes_what_translate_does(text):
    lines = runs.read_lines(text)
    assert written(text, "a") == answers(lines, beam_size=None)
    samples = written(text, "b", how="sample", overrides={"decode.seed": 3})
    assert samples == answers(lines, beam_size=None, sample=True, overrides={"decode.seed": 3})
    few = written(text, "c", how="top_k")
    assert few == answers(lines, beam_size=None, sample=True, overrides={"decode.top_k": 10})
    assert not [*text.parent.glob("*.part")]


@pytest.mark.slow("translates and is killed")
def test_a_killed_command_goes_on_and_writes_the_same(text, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "GROUP_LINES", 4)
    want = written(text, "whole", how="sample")
    lines = len(want)
    about = text.parent / "killed.json"
    shutil.copy(text.parent / "whole.json", about)
    part = runs.write_lines(text.parent / "killed.de.part", [*want[:4], "half of a"])
    part.write_bytes(part.read_bytes()[:-1])
    for options in ({"how": "beam"}, {"how": "sample", "overrides": {"decode.seed": 1}}):
        with pytest.raises(RunError, match=r"killed.json is lost, or of another decode\. Give"):
            written(text, "killed", **options)
    assert written(text, "killed", how="sample") == want
    assert "4 lines are written: going on" in caplog.text
    assert caplog.text.count("going on") == 1
    moved = json.loads(about.read_text()) | {"run": "elsewhere"}
    about.write_text(json.dumps(moved))
    (text.parent / "killed.de").rename(part)
    assert written(text, "killed", how="sample") == want, "all lines were there"
    assert f"killed.de: {lines} lines" in caplog.text


def test_what_is_there_is_not_overwritten(text):
    stem = str(text.with_suffix(""))
    augment(str(runs.trained_run()), text=str(text), output=stem)  # beside the text itself
    with pytest.raises(ConfigError, match=r"more.de exists. Name another stem"):
        augment(str(runs.trained_run()), text=str(text), output=stem)
    runs.write_lines(text.parent / "other.en", ["something else"])
    with pytest.raises(ConfigError, match=r"other.en exists"):
        written(text, "other")
    runs.write_lines(text.parent / "notes.json", ['{"my": "notes"}'])
    with pytest.raises(RunError, match=r"notes.json is lost, or of another checkpoint and decode"):
        written(text, "notes")
    (text.parent / "lost.de.part").write_text("")
    with pytest.raises(RunError, match=r"lost.json is lost, or .* remove it and lost.de.part"):
        written(text, "lost")
    (text.parent / "full.de.gz").write_text("")
    with pytest.raises(ConfigError, match=r"full.de.gz exists. Name another stem"):
        written(text, "full")
    assert not (text.parent / "full.en").exists()
    assert not [*text.parent.glob("[ofln][tuo]*.de")]


def test_a_compressed_text_is_one_side_itself(text):
    compressed = text.with_name("less.en.gz")
    compressed.write_bytes(gzip.compress(text.read_bytes()))
    run = str(runs.trained_run())
    augment(run, text=str(compressed), output=str(text.with_name("less")))
    assert text.with_name("less.de").exists() and not text.with_name("less.en").exists()
    text.with_name("less.de").unlink()
    with pytest.raises(ConfigError, match=r"less.en.gz exists, and is another text"):
        augment(run, text=str(text), output=str(text.with_name("less")))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"how": "samples"}, "--how=samples is not one of beam, sample, top_k"),
        ({"how": "beam", "overrides": {"decode.method": "mbr"}}, "leave one of them out"),
        ({"overrides": {"decode.to": "fr"}}, "the run has one direction"),
        ({"output": "FOLDER/"}, "--output=FOLDER/: data.train cannot name this stem"),
        ({"output": "new@bt"}, "data.train cannot name this stem"),
        ({"output": "new,more"}, "data.train cannot name this stem"),
        ({"output": "new[1:2]"}, "data.train cannot name this stem"),
        ({"text": "more.de"}, "more.de: the run translates en into de. Name a run of the other"),
        ({"text": "more.de.gz"}, "more.de.gz: the run translates en into de"),
    ],
)
def test_wrong_settings_are_one_line(options, told, text):
    given = {"text": str(text), "output": str(text.with_name("new"))} | options
    if options.get("text"):
        given["text"] = str(text.with_name(options["text"]))
        content = text.read_bytes()
        is_compressed = given["text"].endswith(".gz")
        Path(given["text"]).write_bytes(gzip.compress(content) if is_compressed else content)
    with refused(ConfigError, told):
        augment(str(runs.trained_run()), **given)
    assert not [*text.parent.glob("new*")]


def test_samples_are_from_the_whole_distribution_whatever_the_run_s_config_says():
    whole = {"decode.method": "sample", "decode.temperature": 1.0, "decode.top_p": None}
    assert module._searching("sample", {}) == {**whole, "decode.top_k": None}
    warm = {"decode.temperature": 2.0}
    assert module._searching("top_k", warm) == {**whole, **warm, "decode.top_k": 10}


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
def test_the_text_s_sum_is_of_the_lines_that_were_read(tmp_path, name):
    """A pipe cannot be read again."""
    content, file = b"a dog\nthe cat\n", tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    lines, wanted = TextLines(file), file_digest(file).hex()
    file.write_bytes(b"")
    config = SimpleNamespace(decode=SimpleNamespace())
    loaded: Any = SimpleNamespace(folders=["run"], checkpoint="1", digest=str, config=config)
    assert module._origin(loaded, lines)["text"] == wanted


def test_a_line_with_a_code_is_refused(tmp_path):
    lines = TextLines(runs.write_lines(tmp_path / "text", ["a b", ">>fr<< c"]))
    module._check_codes(lines, {})
    with pytest.raises(DataError, match=r"text, line 2 begins with the code >>fr<<\. Remove"):
        module._check_codes(lines, {">>de<<": 9, ">>fr<<": 10})


def test_a_line_after_those_that_were_written_has_its_context(tmp_path):
    class Echo:
        """Translates a line as itself."""

        vocabulary = SimpleNamespace(codes=())

        def __call__(self, lines: list[str]) -> list[list[Translation]]:
            return [[Translation(line, 0.0)] for line in lines]

        def warn_of_cut(self) -> None:
            """Has nothing to warn of."""

    echo: Any = Echo()
    lines = TextLines(runs.write_lines(tmp_path / "text", ["a", "b", "c", "d"]))
    for done in range(4):
        written = "".join(f"{i}\n" for i in range(done))
        module._translate(echo, 1, lines, file := io.BytesIO(written.encode()))
        new = file.getvalue().decode().removeprefix(written).split("\n")[:-1]
        assert new == ["a\t", "b\ta", "c\tb", "d\tc"][done:]


@pytest.mark.parametrize(
    ("data", "to", "sources", "name", "want"),
    [
        ({"src": "en", "tgt": "de"}, None, 1, "a.txt", ("en", "de")),
        ({"src": "en", "tgt": "mul"}, "fr", 1, "a.en", ("en", "fr")),
        ({"directions": ("en-de", "de-en")}, "en", 1, "a.de", ("de", "en")),
        ({"directions": ("en-de", "de-en")}, "en", 1, "a.de.gz", ("de", "en")),
        ({"directions": ("en-de", "de-en")}, None, 1, "a.de", "name the target language"),
        ({"directions": ("en-de", "de-en")}, "de", 1, "a.de", "name the target language"),
        ({"src": "en,fr"}, None, 2, "a.en", "for runs with one source, and this one reads en,fr"),
    ],
)
def test_files_are_called_by_their_languages(data, to, sources, name, want):
    model = SimpleNamespace(sources=sources)
    config = SimpleNamespace(data=DataConfig(**data), decode=SimpleNamespace(to=to))
    loaded: Any = SimpleNamespace(config=config, translator=SimpleNamespace(model=model))
    if isinstance(want, tuple):
        assert module._languages(loaded, Path(name)) == want
    else:
        with pytest.raises(ConfigError, match=want):
            module._languages(loaded, Path(name))
