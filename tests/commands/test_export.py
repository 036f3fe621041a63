"""The `export` command: other engines compute what we compute.

Tests of CTranslate2 and of transformers are skipped where these are not installed; the Hugging Face
folder is read by our own import too, whose logits are proved elsewhere.
"""

import functools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_import import imported
from tests.fixtures.cases import of_table
from tests.fixtures.tiny import lay_out, model_inputs, random_params, relative_error
from transformer_jax.api import Run
from transformer_jax.commands import export as command
from transformer_jax.config.changes import with_values
from transformer_jax.config.data import DataConfig
from transformer_jax.config.files import split_overrides
from transformer_jax.config.schema import Config
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import UserError
from transformer_jax.evaluation.alignment import Aligner
from transformer_jax.interop import ctranslate2_out, huggingface_out
from transformer_jax.interop.exported import Exported
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import save_weights
from transformer_jax.text.batches import Packed
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.bundle import Bundle, packed
from transformer_jax.text.vocabulary import BOS, EOS, TableVocabulary, Vocabulary, load_vocabulary
from transformer_jax.text.vocabulary_training import train_vocabulary
from transformer_jax.use.loading import LoadedModel, load_model

LONGEST = 64  # subwords
IMPORTED = {"imported": "one", "imported, two": "two"}
POST = {"model.norm": "post", "model.norm_epsilon": 1e-5}
MODELS: dict[str, dict[str, Any]] = {
    "post": {**POST, "model.num_decoder_layers": 2},
    "pre": {"model.norm": "pre", "model.norm_epsilon": 1e-5, "model.activation": "gelu"},
    "biases": {**POST, "model.attention_bias": True, "model.output_bias": True},
    "untied": {**POST, "model.activation": "swish", "model.tie_embeddings": False},
    "two": {
        **POST,
        "model.tie_embeddings": False,
        "model.tie_output": True,
        "vocabulary.separate": True,
        "model.output_bias": True,
    },
}
FOR_CTRANSLATE2 = {
    **MODELS,
    "learned": {"model.positions": "learned", "model.max_positions": 64},
    "t2t": {"model.positions": "sinusoidal_t2t", "model.score": "dot"},
    "none": {"model.positions": "none", "model.d_k": 5},
    "pre, untied": {"model.tie_embeddings": False},
}


@functools.cache
def run_of(name: str) -> Path:
    """A run with random weights and the vocabulary of the tiny run, or an imported one."""
    return imported(IMPORTED[name]) if name in IMPORTED else random_run(FOR_CTRANSLATE2[name])


def random_run(values: dict[str, Any]) -> Path:
    """A run with random weights, and with these keys beside those of the tiny run."""
    config = with_values(Config(), runs.tiny_values() | values)
    folder = RunFolder(Path(tempfile.mkdtemp(dir=runs.scratch().name)) / "run")
    folder.claim(config, "none")
    vocabulary = vocabulary_of(config)
    vocabulary.save(folder.vocabulary_file)
    folder.seal()
    params = random_params(make_model(config.model, vocabulary.sizes), seed=4)
    save_weights(folder, jax.tree.map(np.asarray, params))
    folder.unlock()
    return folder.path


def vocabulary_of(config: Config) -> Vocabulary:
    """That of the tiny run, or two of different sizes."""
    if not config.vocabulary.separate:
        return load_vocabulary(RunFolder(runs.trained_run()).vocabulary_file)
    own = [
        train_vocabulary(runs.read_lines(runs.tiny_corpus() / f"train.{side}"), of, 0)
        for side, of in (("en", VocabularyConfig(size=320)), ("de", VocabularyConfig(size=350)))
    ]
    tables = [tuple(one.pieces(range(one.size))) for one in own]
    bundle = Bundle(own[0].model, own[1].model, tables[0], ("", ""), tables[1])
    return TableVocabulary(packed(bundle))


@functools.cache
def exported(name: str, format: str, *flags: str) -> Path:
    return export_of(run_of(name), format, *flags)


def export_of(run: Path, format: str, *flags: str) -> Path:
    """A new folder that the command has exported."""
    output = Path(tempfile.mkdtemp(dir=runs.scratch().name)) / "exported"
    arguments = (f"--workdir={run}", f"--format={format}", f"--output={output}", *flags)
    assert runs.command("export", *arguments) == 0
    return output


def sources() -> list[str]:
    return runs.read_lines(runs.tiny_corpus() / "test.en")[:8]


def pairs_of(loaded: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Encoded sources, and random targets."""
    draw = np.random.default_rng(0)
    size = loaded.vocabulary.target.size
    encoded = loaded.line_translator().encode(sources())
    return [(ids, np.append(draw.integers(4, size, len(ids) % 7), EOS)) for ids in encoded]


@functools.partial(jax.jit, static_argnums=0)
def apply(model: Any, params: Any, source: Packed, target: Packed) -> Any:
    return model.apply({"params": params}, source, target)


def logits_of(loaded: Any, src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
    """Our logits of each subword of a target `[length, vocabulary]`."""
    inputs = model_inputs(lay_out([(src, tgt)], [[0]], LONGEST, LONGEST))
    logits = apply(loaded.translator.model, loaded.translator.params, *inputs)
    return np.asarray(logits[0, : len(tgt)], np.float64)[:, : loaded.vocabulary.target.size]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(logits, axis=-1))


# CTranslate2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FOR_CTRANSLATE2, *IMPORTED])
def test_ctranslate2_gives_the_log_probabilities_and_subwords_that_we_give(name):
    engine = pytest.importorskip("ctranslate2")
    loaded = load_model(str(run_of(name)), beam_size=1)
    folder = exported(name, "ctranslate2")
    translator = engine.Translator(str(folder), "cpu", intra_threads=1)
    pieces = loaded.vocabulary.target.pieces
    pairs = pairs_of(loaded)
    inputs = [loaded.vocabulary.pieces(src[:-1]) for src, _ in pairs]
    scored = translator.score_batch(inputs, [pieces(tgt[:-1]) for _, tgt in pairs])
    for (src, tgt), got in zip(pairs, scored, strict=True):
        want = log_softmax(logits_of(loaded, src, tgt))[np.arange(len(tgt)), tgt]
        np.testing.assert_allclose(got.log_probs, want, atol=1e-4)
    # Greedy: random models have many hypotheses that are nearly as likely as the best.
    found = translator.translate_batch(inputs, beam_size=1, max_decoding_length=12)
    translated = loaded.translator.translate([src for src, _ in pairs])
    for got, (best,) in zip(found, translated, strict=True):
        assert got.hypotheses[0][:9] == pieces([i for i in best.ids if i != EOS])[:9]


@pytest.mark.parametrize("name", [*FOR_CTRANSLATE2, *IMPORTED])
def test_a_ctranslate2_folder_is_imported_as_the_run_that_it_is_from(name, tmp_path):
    pytest.importorskip("ctranslate2")
    folder, run = exported(name, "ctranslate2"), tmp_path / "run"
    languages = ("--src=en", "--tgt=de")
    assert runs.command("import", f"--from={folder}", f"--workdir={run}", *languages) == 0
    before, after = load_model(str(run_of(name))), load_model(str(run))
    assert after.vocabulary.digest == before.vocabulary.digest
    different = "num_layers", "dropout", "score", "watched_layer", "watched_heads", "max_positions"
    config, own = (
        {
            **vars(one.config.model),
            **dict.fromkeys(different),
            "num_encoder_layers": one.config.model.encoder_depth,
            "num_decoder_layers": one.config.model.decoder_depth,
        }
        for one in (after, before)
    )
    assert config == own
    for src, tgt in pairs_of(before):
        want, got = logits_of(before, src, tgt), logits_of(after, src, tgt)
        assert relative_error(got, want) < 1e-6


def test_ctranslate2_aligns_by_the_head_with_the_lowest_error_rate(tmp_path, caplog):
    """Of gold links that are those of one head of one layer; its weights are what it returns."""
    engine = pytest.importorskip("ctranslate2")
    run = Run(load_model(str(run_of("post")), beam_size=1))
    layer, head = 0, 1
    source = sources()[:4]
    target = runs.read_lines(runs.tiny_corpus() / "test.de")[:4]
    links = [one.heads_NHJ[layer, head] for one in run.align(source, target)]
    runs.write_lines(tmp_path / "gold.en", source)
    runs.write_lines(tmp_path / "gold.de", target)
    pharaoh = [" ".join(f"{i}-{j}" for j, i in enumerate(own) if i >= 0) for own in links]
    runs.write_lines(tmp_path / "gold.align", pharaoh)
    with caplog.at_level("INFO"):
        folder = exported("post", "ctranslate2", f"--gold={tmp_path / 'gold'}")
    assert "alignments by layer 1, head 2: error rate 0.000 on 4 pairs" in caplog.text
    attended = run.attention(source[0]).kinds["cross"]
    pieces = [attended.attended[:-1]]
    translator = engine.Translator(str(folder), "cpu", intra_threads=1)
    [found] = translator.translate_batch(pieces, beam_size=1, return_attention=True)
    got = np.array(found.attention[0])
    want = attended.weights_NHLM[layer, head]
    assert found.hypotheses[0][:9] == attended.attending[:9]
    np.testing.assert_allclose(got[:9], want[:9, : got.shape[1]], atol=1e-4)


def test_the_links_of_the_built_in_corpus_choose_what_aligns(monkeypatch):
    seen = []

    def best(texts, links):
        seen.append((*texts, links))
        return Aligner(0, None, 0.25)

    full = {"train.alignment_weight": 0.1, "train.alignment_context": "full"}
    loaded = LoadedModel(with_values(Config(), full), None, None, "40")

    def run_of(given):
        assert given.config.train.alignment_context == "past", "the pass that an engine has"
        return SimpleNamespace(align=lambda *texts: texts)

    monkeypatch.setattr(command, "load_model", lambda *run, overrides: seen.append(run) or loaded)
    monkeypatch.setattr(command, "Run", run_of)
    monkeypatch.setattr(command, "best_aligner", best)
    config = with_values(Config(), {"data.source": "grammar"})
    swapped = with_values(config, {"data.src": "de", "data.tgt": "en"})
    drawn = built_in_pairs("valid", 200)
    src = [" ".join(pair.src_words) for pair in drawn]
    tgt = [" ".join(pair.tgt_words) for pair in drawn]
    links = [pair.alignment for pair in drawn]
    back = [tuple(sorted((j, i) for i, j in one)) for one in links]
    for one, texts in (config, (src, tgt, links)), (swapped, (tgt, src, back)):
        assert command._aligner("run", "40", one, None) == (0, None, 0.25)
        found = seen.pop()
        assert (seen.pop(), found[:2]) == (("run", "40"), texts[:2])
        assert [tuple(sorted(own)) for own in found[2]] == [tuple(sorted(x)) for x in texts[2]]
    assert command._aligner("run", "40", with_values(Config(), {"data.path": "x"}), None) is None


def model_of_post() -> Exported:
    loaded = load_model(str(run_of("post")))
    params = jax.tree.map(np.asarray, loaded.translator.params)
    return Exported(loaded.config, params, loaded.vocabulary, ())


def test_ctranslate2_aligns_by_the_watched_layer_and_heads_and_has_our_epsilon():
    pytest.importorskip("ctranslate2")
    own = {"model.watched_layer": 1, "model.watched_heads": 1, "model.norm_epsilon": 3e-4}
    model = model_of_post()
    spec = ctranslate2_out._spec(model._replace(config=with_values(model.config, own)))
    assert (int(spec.decoder.alignment_layer), int(spec.decoder.alignment_heads)) == (1, 1)
    assert spec.config.layer_norm_epsilon == 3e-4


def test_a_quantized_folder_is_smaller_and_nearly_as_likely():
    engine = pytest.importorskip("ctranslate2")
    whole = exported("post", "ctranslate2")
    small = exported("post", "ctranslate2", "--quantization=int8")
    sizes = [(folder / "model.bin").stat().st_size for folder in (whole, small)]
    assert sizes[1] < sizes[0]
    loaded = load_model(str(run_of("post")))
    src, tgt = pairs_of(loaded)[1]
    pieces = [[loaded.vocabulary.pieces(ids[:-1])] for ids in (src, tgt)]
    translators = [engine.Translator(str(folder), "cpu") for folder in (whole, small)]
    scores = [sum(one.score_batch(*pieces)[0].log_probs) for one in translators]
    assert scores[1] == pytest.approx(scores[0], rel=0.05) and scores[0] != scores[1]
    for name in ("source.spm", "target.spm"):
        assert (whole / name).read_bytes() == loaded.vocabulary.model


# Hugging Face ------------------------------------------------------------------------------------


def test_a_vocabulary_that_spells_language_codes_is_warned_of(tmp_path, caplog):
    """MarianTokenizer takes >>deu<< for one token, which such a vocabulary does not have."""
    model = model_of_post()
    lines = [f">>deu<< {line}" for line in sources()] * 20
    codes = train_vocabulary(lines, VocabularyConfig(size=model.vocabulary.size), 0)
    for own, warned in ((model.vocabulary, False), (codes, True)):
        own_model = model._replace(vocabulary=own)
        huggingface_out.write_huggingface(own_model, tmp_path / str(warned), {})
        assert ("takes for one token" in caplog.text) == warned


@pytest.mark.parametrize("name", MODELS)
def test_transformers_gives_the_logits_and_subwords_that_we_give(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = exported(name, "huggingface")
    loaded = load_model(str(run_of(name)), beam_size=1)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for line, (src, tgt) in zip(sources(), pairs_of(loaded), strict=True):
        assert tokenizer(line).input_ids == src.tolist()
        given = np.concatenate([[BOS], tgt[:-1]])
        with torch.no_grad():
            got = model(
                input_ids=torch.tensor(src[None].astype(np.int64)),
                decoder_input_ids=torch.tensor(given[None].astype(np.int64)),
            ).logits[0]
        assert relative_error(got, logits_of(loaded, src, tgt)) < 1e-5
    src = pairs_of(loaded)[0][0]
    (best,) = loaded.translator.translate([src])[0]
    inputs = torch.tensor(src[None].astype(np.int64))
    (generated,) = model.generate(inputs, num_beams=1, max_length=len(best.ids))
    assert generated.tolist() == [BOS, *best.ids[:-1].tolist()]  # ours ends in EOS at its limit


@pytest.mark.slow("exports and imports five models")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_exported_can_be_imported_and_is_the_same_model(name, tmp_path):
    """A subword more, the decoder's first input, does not change the others' logits."""
    folder = exported(name, "huggingface")
    workdir = tmp_path / "again"
    arguments = (f"--from={folder}", f"--workdir={workdir}")
    assert runs.command("import", *arguments) == 0
    ours = load_model(str(run_of(name)))
    again = load_model(str(workdir))
    for line in ("„One“ – two … three ‘four’", '"the dog" , "a man" .'):
        pieces = ours.vocabulary.pieces(ours.vocabulary.encode(line))
        assert again.vocabulary.pieces(again.vocabulary.encode(line)) == pieces
    assert (again.config.data.src, again.config.data.tgt) == ("en", "de")
    for src, tgt in pairs_of(ours):
        want = logits_of(ours, src, tgt)
        theirs = [
            np.array([side.ids_of([piece])[piece] for piece in own.pieces(ids)])
            for side, own, ids in (
                (again.vocabulary, ours.vocabulary, src),
                (again.vocabulary.target, ours.vocabulary.target, tgt),
            )
        ]
        got = logits_of(again, *theirs)
        pieces = ours.vocabulary.target.pieces(range(ours.vocabulary.target.size))
        columns = list(again.vocabulary.target.ids_of(pieces).values())
        keep = [i for i in range(len(pieces)) if i != BOS]
        assert relative_error(got[:, [columns[i] for i in keep]], want[:, keep]) < 1e-5


def test_the_folder_says_how_it_is_used():
    folder = exported("post", "huggingface")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["decoder_start_token_id"], generation["eos_token_id"]) == (BOS, EOS)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    command = "--format=huggingface --checkpoint=0"
    for words in ("en to de", "GNMT's length penalty", "revision", command):
        assert words in card


def test_the_card_has_the_scores_of_its_checkpoint_alone(tmp_path):
    run = RunFolder(tmp_path)
    run.corpus_file.write_text("0123456789abcdefgh\n")
    run.evaluations.mkdir()
    search = {"beam_size": 4, "length_penalty": 0.6, "bleu_signature": "tok:13a"}
    records = {
        "test": {"checkpoint": "40", "name": "test", "bleu": 27.345, **search},
        "older": {"checkpoint": "35", "name": "older", "bleu": 26.0, **search},
        "valid": {"checkpoint": "40", "name": "valid"},
    }
    whole = records["test"]
    records |= {"test.1": {**whole, "bleu": 1.0, "date": "2026-01-01"}, "test.mbr": whole}
    whole["date"] = "2026-01-02"
    records["test.mbr"] = {**whole, "bleu": 2.0, "date": "2026-01-03", "method": "mbr"}
    for name, record in records.items():
        (run.evaluations / f"{name}.json").write_text(json.dumps(record))
    facts = command._facts(run, DataConfig(train=("a", "b")), "40")
    scores = {name: fact for name, fact in facts.items() if "BLEU" in name}
    assert scores == {"sacreBLEU on test": "27.3 (beam 4, length penalty 0.6, tok:13a)"}
    assert facts["data"] == "files, training split a, b; fingerprint 0123456789abcdef"


CALLS = {"ctranslate2": "translate_batch(", "huggingface": "generate(", "stablehlo": "search.py "}
OURS = ("decode.method", "decode.groups", "decode.coverage_penalty", "decode.weights")
OTHER = "; it divides by length^alpha, ours by GNMT's penalty: at alpha 0 both are the same"
# Format and settings of decode, and how the line ends; an indented line continues the one above.
SEARCHES = """
ctranslate2 length_penalty=0.5 | beam_size=3, length_penalty=0.5)OTHER
ctranslate2 length_penalty=0.0 | beam_size=3, length_penalty=0)
ctranslate2 penalty=power | beam_size=3, length_penalty=0.6)
huggingface to=de | OTHER; begin every line with >>de<<, as decode.to does here
huggingface | generate(...) with the folder's generation_config.jsonOTHER
ctranslate2 length_penalty=0.0 min_length=2 no_repeat=3
    max_input_length=0, min_decoding_length=2, max_decoding_length=561
    beam_size=3, length_penalty=0, no_repeat_ngram_size=3)
ctranslate2 banned_subwords=<unk> penalty=power max_length=20
    min_decoding_length=0, max_decoding_length=69, suppress_sequences=[['<unk>']]
    beam_size=3, length_penalty=0.6)
stablehlo | search.py of the folder, with 3 beams, no length penalty
stablehlo no_repeat=3 | no length penalty and without decode.min_length and decode.no_repeat
stablehlo method=mbr | no length penalty
stablehlo groups=2 | no length penalty
stablehlo coverage_penalty=0.2 | no length penalty
stablehlo weights=bfloat16 | no length penalty
"""


@pytest.mark.parametrize("case", of_table(SEARCHES), ids=" ".join)
def test_the_log_says_how_the_same_search_is_called_or_the_nearest(case):
    format, *settings = case[0].split()
    _, values = split_overrides([f"--config.decode.{one}" for one in settings])
    decode = with_values(Config(), {**values, "decode.beam_size": 3}).decode
    own = [f"{name}={value!r}" for name, value in values.items() if name in OURS]
    which = f"{own[0]}: ours alone; the nearest search" if own else "the same search"
    found = command._search(decode, format)
    assert found.startswith(f"{which} there: {CALLS[format]}")
    assert found.endswith(", ".join(case[1:]).replace("OTHER", OTHER))


# Mistakes ----------------------------------------------------------------------------------------


def test_half_a_model_is_removed_if_the_disk_is_full(tmp_path, monkeypatch):
    def full(model, folder, about):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_huggingface", full)
    with pytest.raises(UserError, match="x cannot be written: No space left on device"):
        command.export(str(run_of("post")), format="huggingface", output=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_an_export_does_not_replace_what_another_one_wrote_meanwhile(tmp_path, monkeypatch):
    def write(model, folder, about):
        for one in (folder, tmp_path / "x"):
            one.mkdir()
            (one / "config.json").write_text(one.parent.name)

    monkeypatch.setattr(command, "write_huggingface", write)
    with pytest.raises(UserError, match="x cannot be written: Directory not empty"):
        command.export(str(run_of("post")), format="huggingface", output=str(tmp_path / "x"))
    assert (tmp_path / "x" / "config.json").read_text() == tmp_path.name
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
