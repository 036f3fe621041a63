"""A run of several directions: a flag names the target language, or the source line does."""

import dataclasses
import json
from pathlib import Path

import pytest

import transformer_jax
from tests import tiny_runs as runs
from tests.training.test_data import load
from transformer_jax.commands.evaluate import _parts_of, _Text
from transformer_jax.commands.export import _aligner
from transformer_jax.config.changes import with_values
from transformer_jax.errors import DataError, UserError
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.serving.answers import answer_all
from transformer_jax.serving.asked import Asked, Refused
from transformer_jax.training.data import load_data
from transformer_jax.use.loading import pairs_of_split

DIRECTIONS = "en-de,de-en"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Trained in both directions; 30 of the pairs are tagged and count half."""
    folder = tmp_path_factory.mktemp("runs") / "both"
    texts = "train[:270],train[270:]@bt*0.5"
    assert runs.train(folder, data__directions=DIRECTIONS, data__train=texts) == 0
    return folder


def test_the_target_language_is_a_flag_or_begins_the_line(run):
    lines = ["The old man sleeps.", "", ">>en<< Ein Hund."]
    german = transformer_jax.load(run, to="de").n_best(lines, 2)
    coded = transformer_jax.load(run).n_best([f">>de<< {lines[0]}", "", lines[2]], 2)
    assert german == coded and german[1] == [("", 0.0)]
    english = transformer_jax.load(run, to="en")
    one, other = (
        transformer_jax.load(run).score([f">>{x}<< {lines[0]}"], ["Ein Hund."])
        for x in ("de", "en")
    )
    assert english.score(lines[:1], ["Ein Hund."]) == other != one


def test_a_line_without_a_target_language_is_refused_and_so_is_an_unknown_one(run, capsys):
    with pytest.raises(DataError, match="The line 'A dog.' does not say. Set decode.to .* de, en"):
        transformer_jax.load(run).loaded.line_translator()(["A dog."])
    with pytest.raises(UserError, match="names several targets: >>de<<, >>en<<"):
        transformer_jax.load(run).translate([">>de<< >>en<< A dog."])
    with pytest.raises(UserError, match="Into which language"):  # a tag is none
        transformer_jax.load(run).translate([">>bt<< A dog."])
    assert runs.command("attention", f"--workdir={run}", "A dog.", "--to=fr") == 2
    assert "decode.to=fr: the run translates into de, en" in capsys.readouterr().err
    with pytest.raises(UserError, match="decode.to=bt: the run translates into de, en"):
        transformer_jax.load(run, to="bt").translate(["A dog."])
    assert runs.command("translate", f"--workdir={run}", "--to=de", "--config.decode.to=en") == 2
    assert "--to and --config.decode.to say two things" in capsys.readouterr().err


def test_lines_that_begin_with_a_language_are_not_called_wrong(run, tmp_path, caplog):
    lines = [f">>de<< {line}" for line in runs.read_lines(runs.tiny_corpus() / "test.en")]
    ref = runs.tiny_corpus() / "test.de"
    files = f"--src={runs.write_lines(tmp_path / 'a', lines)}", f"--ref={ref}"
    flags = f"--workdir={run}", "--beam_size=1", "--config.decode.max_length=4"
    assert runs.command("evaluate", *flags, *files) == 0
    assert "have a code of their own" not in caplog.text


def test_a_split_in_a_language_that_the_run_does_not_know_and_one_that_goes_on(run, capsys):
    assert runs.command("evaluate", f"--workdir={run}", "--from=en", "--to=fr") == 2
    assert "test:en-fr: the run translates into de, en" in capsys.readouterr().err
    path = f"--config.data.path={runs.tiny_corpus()}"
    assert runs.command("train", f"--config=finetune:{run}", "--print_config", path) == 0
    assert json.loads(capsys.readouterr().out)["data"]["directions"] == ["en-de", "de-en"]
    other = f"--init_from={runs.trained_run()}"
    assert runs.command("train", "--config=text", path, other, "--print_config") == 0
    vocabulary = json.loads(capsys.readouterr().out)["vocabulary"]
    assert vocabulary["size"] == runs.tiny_config().vocabulary.size


def test_a_split_in_one_direction_has_its_parts(run):
    config = with_values(RunFolder(str(run)).read_config(), {"data.test": ("test[:4]", "test[4:]")})
    pairs = pairs_of_split(config, "test:en-de", RunFolder(str(run)))
    found = _parts_of(config, _Text("all", "test:en-de", [pairs]))
    assert [(part.name, len(part.pairs)) for part in found] == [
        ("test[:4]:en-de", 4),
        ("test[4:]:en-de", 8),
    ]


def test_lines_are_judged_by_the_tokens_of_their_own_language(run):
    loaded = transformer_jax.load(run, method="mbr").loaded
    config = with_values(loaded.config, {"data.directions": ("en-de", "en-zh")})
    loaded = loaded._replace(config=config)
    assert loaded.line_translator(text="test:en-de").tokens == "13a"
    assert loaded.line_translator().tokens == "char"


def test_text_without_the_code_that_search_adds_is_said(run, tmp_path, caplog):
    values = {"vocabulary__path": str(run / "vocabulary.model"), "decode__to": "de"}
    for text in ("train@de", "train"):
        assert "training text does not" not in caplog.text
        load(tmp_path, **values, data__train=(text,))
    assert "decode.to: search begins source lines with >>de<<, and training text does not" in (
        caplog.text
    )


@pytest.mark.slow("compiles searches of several directions")
def test_evaluate_scores_each_direction_and_all(run, capsys):
    assert runs.command("evaluate", f"--workdir={run}", "--beam_size=1") == 0
    printed = capsys.readouterr().out
    for text, direction in (("test:en-de", "en→de"), ("test:de-en", "de→en")):
        assert f"{text}, 12 lines\nBLEU" in printed and f" {direction}  nrefs" in printed
    assert "test, 24 lines" in printed and " en+de→de+en  nrefs" in printed
    flags = "--beam_size=1", "--from=de", "--to=en"
    assert runs.command("evaluate", f"--workdir={run}", *flags) == 0
    alone = capsys.readouterr().out
    assert alone.strip() in printed  # as a part of all
    assert runs.command("evaluate", f"--workdir={run}", "--to=en") == 2
    assert "--from and --to belong together" in capsys.readouterr().err
    corpus = runs.tiny_corpus()
    files = f"--src={corpus}/test.de", f"--ref={corpus}/test.en"
    assert runs.command("evaluate", f"--workdir={run}", *files, *flags[::2]) == 0
    assert capsys.readouterr().out == alone


def test_codes_are_no_words(run, tmp_path, capsys):
    src = runs.write_lines(tmp_path / "x.en", ["A dog."])
    coded = runs.write_lines(tmp_path / "coded.en", [">>de<< A dog."])
    tgt = runs.write_lines(tmp_path / "x.de", ["Ein Hund."])
    printed = []
    for flags in ([f"--src={src}", "--to=de"], [f"--src={coded}"]):
        assert runs.command("align", f"--workdir={run}", f"--tgt={tgt}", *flags) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    sources = {int(link.split("-")[0]) for link in printed[0].split()}
    assert sources <= {0, 1}
    [found] = transformer_jax.load(run, to="de").align(["A dog."], ["Ein Hund."])
    assert found.src_words == ["A", "dog."]
    found = transformer_jax.load(run, to="de").attention("A dog.", "Ein Hund.")
    assert found.kinds["cross"].attended[0] == ">>de<<"


def test_another_vocabulary_has_to_know_the_codes(tmp_path):
    own = str(runs.trained_run() / "vocabulary.model")
    with pytest.raises(DataError, match="no subword >>de<<.*it knows: none"):
        load(tmp_path, data__directions=("en-de",), vocabulary__path=own)


def test_batches_mix_the_texts_as_their_weights_say(run, tmp_path):
    config = RunFolder(str(run)).read_config()
    data = load_data(config, RunFolder(str(run)))
    whole, half = data.plan.groups[1], data.plan.groups[0]
    assert (whole.in_epoch, half.in_epoch) == (whole.rows, round(half.rows / 2))
    bt = data.vocabulary.codes[">>bt<<"]
    batches = data.train_batches(None, 0)
    rows, tagged = 0, 0
    while rows < 4 * data.plan.epoch_rows:
        batch = next(batches)
        rows += len(batch.src.ids)
        tagged += ((batch.src.ids == bt).any(1)).sum()
    batches.close()
    assert tagged / rows == pytest.approx(half.in_epoch / data.plan.epoch_rows, rel=0.25)
    # The same pairs in one direction and untagged: the plan has one group, of all rows.
    plain = dataclasses.replace(config.data, directions=(), train=("train",))
    plan = load_data(dataclasses.replace(config, data=plain), RunFolder(str(tmp_path))).plan
    assert [tuple(group) for group in plan.groups] == [(len(plan), len(plan))]


def test_a_request_without_a_target_language_is_refused(run):
    asked = [Asked([line], 1) for line in ("A dog.", ">>de<< A dog.")]
    refused, answer = answer_all(transformer_jax.load(run, beam_size=1), asked)
    assert isinstance(refused, Refused) and refused.status == 400
    assert "Into which language" in str(refused)
    assert not isinstance(answer, Refused)


def test_decode_to_is_checked_before_training(tmp_path):
    with pytest.raises(DataError, match="no subword >>en<<"):
        load(tmp_path, data__directions=("en-de",), decode__to="en")


def test_the_vocabulary_follows_codes_and_weights(tmp_path):
    """The texts are the same, so their fingerprints are."""
    names = []
    for text in ("train[:150],train[150:]", "train[:150]*9,train[150:]"):
        names.append(load(tmp_path, data__train=tuple(text.split(","))).vocabulary.digest)
    directions = {"data__train": ("train:en-de",), "data__valid": ("valid:en-de",)}
    for own in (("en-de",), ("en-de", "de-en")):
        vocabulary = load(tmp_path, **directions, data__directions=own).vocabulary
        assert list(vocabulary.codes) == [f">>{one[3:]}<<" for one in own]
        names.append(vocabulary.digest)
    assert len(set(names)) == 4


def test_an_export_finds_what_aligns_in_the_first_direction(run):
    config = with_values(RunFolder(str(run)).read_config(), {"data.source": "grammar"})
    assert _aligner(str(run), "latest", config, None) is not None
