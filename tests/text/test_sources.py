"""Several source sentences of a pair: as text, as subwords, and packed into rows."""

import gzip
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures.encoded import rows_of
from tests.fixtures.tiny import lay_out
from tests.text.test_encoded import Characters
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.batches import packed_batch, packed_sentences
from transformer_jax.text.corpora import Pair, open_corpus
from transformer_jax.text.encoded import encode_corpus
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.sources import encode_sources, positions_of
from transformer_jax.text.vocabulary import EOS

TEXTS = {
    "de": ["ein Hund", "zwei\tKatzen", "", "drei"],
    "fr": ["un chien", "deux chats", "", ""],
    "en": ["a dog", "two cats", "none", "three"],
}
PAIRS = [
    Pair("ein Hund\tun chien", "a dog"),
    Pair("zwei Katzen\tdeux chats", "two cats"),
    Pair("\t", "none"),
    Pair("drei\t", "three"),
]


def spelled(ids) -> str:
    """The text of `Characters`' ids, with a full stop for EOS."""
    return "".join("." if i == EOS else chr(Characters().size - 1 - i) for i in ids)


def data(folder: Path, source: str = "files") -> DataConfig:
    return DataConfig(source=source, path=str(folder), src="de,fr", tgt="en", valid=("train",))


@pytest.mark.parametrize("source", ["files", "parquet"])
def test_a_pair_has_the_sentences_of_all_source_languages(tmp_path, source):
    if source == "files":
        for language, lines in TEXTS.items():
            text = "".join(line + "\n" for line in lines).encode()
            (tmp_path / f"train.{language}.gz").write_bytes(gzip.compress(text))
    else:
        rows = [dict(zip(TEXTS, texts, strict=True)) for texts in zip(*TEXTS.values(), strict=True)]
        pq.write_table(pa.table({"translation": rows}), tmp_path / "train.parquet")
    assert list(open_corpus(data(tmp_path, source)).split("train")) == PAIRS


def test_every_source_file_needs_as_many_lines(tmp_path):
    for language, lines in TEXTS.items():
        text = "".join(line + "\n" for line in lines[: -1 if language == "fr" else None])
        (tmp_path / f"train.{language}").write_text(text)
    with pytest.raises(DataError, match=r"train\.fr has 3 lines and .*train\.en has 4"):
        open_corpus(data(tmp_path)).split("train")


def test_the_sentences_of_a_line_end_in_eos_and_a_line_without_text_has_none():
    found = encode_sources(Characters(), [pair.src for pair in PAIRS], 2)
    want = ["ein Hund.un chien", "zwei Katzen.deux chats", "", "drei."]
    assert [spelled(ids) for ids in found] == want
    assert {ids.dtype for ids in found} == {np.dtype("int32")}
    assert spelled(encode_sources(Characters(), ["a\tb\t\td"], 4)[0]) == "a.b..d"
    assert spelled(encode_sources(Characters(), ["a\tb"], 1)[0]) == "a\tb", "white space"


@pytest.mark.parametrize(("line", "tabs"), [("a", 0), ("a\tb\tc", 2), ("x" * 99 + "\t\t", 2)])
def test_a_line_with_another_number_of_sentences_is_refused(line, tabs):
    with pytest.raises(DataError, match=rf"has {tabs} tabs.*model\.sources=2") as error:
        encode_sources(Characters(), ["a\tb", line], 2)
    assert len(str(error.value)) < 200


def test_in_packed_rows_positions_begin_again_in_each_source_sentence(tmp_path):
    encoded = encode_corpus(PAIRS, Characters(), tmp_path, "key", sources=2)
    plan = plan_rows(encoded.src_lengths(), encoded.tgt_lengths(), 64, 32, seed=0)
    batch = packed_batch(encoded, plan, np.arange(len(plan)))
    assert plan.empty == 1, "the pair without a source"
    pairs = [(encoded.src(i), encoded.tgt(i)) for i in range(len(PAIRS))]
    want = lay_out(pairs, rows_of(plan), 64, 32)
    jax.tree.map(np.testing.assert_array_equal, batch, want)
    assert spelled(batch.src.ids[batch.src.segments != 0]).count(".") == 6


def test_the_cache_tells_one_source_from_two(tmp_path):
    one, two = (encode_corpus(PAIRS, Characters(), tmp_path, "key", sources=n) for n in (1, 2))
    assert "\t" in spelled(one.src(0)) and "." not in spelled(one.src(0)[:-1])
    assert "\t" not in spelled(two.src(0))


def test_a_compiled_program_counts_positions_as_the_host_does():
    ids = np.array(
        [[5, 6, EOS, 7, EOS, 0, 0], [EOS, EOS, 8, 9, 9, 9, EOS], [5, EOS, 0, 0, 0, 0, 0]]
    )
    want = [[0, 1, 2, 0, 1], [0, 0, 0, 1, 2, 3, 4], [0, 1]]
    compiled = jax.jit(lambda ids: positions_of(ids, jnp, jax.lax.cummax))
    for found in (positions_of(ids), np.asarray(compiled(ids))):
        assert found.dtype == np.int32
        assert [row[: len(own)].tolist() for row, own in zip(found, want, strict=True)] == want
    row = packed_sentences([ids[0, :5]], 2, 7)
    assert row.positions[0, :5].tolist() == want[0]
    assert row.segments.tolist() == [[1, 1, 1, 1, 1, 0, 0], [0] * 7]
