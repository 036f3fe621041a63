"""The safetensors format, against the package where it is installed."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from transformer_jax.errors import DataError
from transformer_jax.interop.safetensors import read_safetensors, safetensors_bytes

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.weight": np.full((1,), -0.5, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
}


def read_by_the_package(path: Path) -> dict[str, np.ndarray]:
    return pytest.importorskip("safetensors.numpy").load_file(path)


@pytest.mark.parametrize("read", [read_safetensors, read_by_the_package])
def test_what_is_written_is_read(read, tmp_path):
    """What the package writes is the file of the Hugging Face fixtures."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(ARRAYS))
    found = read(path)
    assert found.keys() == ARRAYS.keys()
    for name, x in ARRAYS.items():
        np.testing.assert_array_equal(found[name], x)


def written(folder: Path, header: dict, data: bytes) -> Path:
    """A file written by hand, from the format's description."""
    text = json.dumps(header).encode()
    path = folder / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_every_type_is_read_as_what_it_is(tmp_path):
    kinds = {
        "F64": np.float64,
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "I64": np.int64,
        "I32": np.int32,
        "U8": np.uint8,
    }
    content, header = b"", {}
    for name, kind in kinds.items():
        x = np.array([1, 2, 100]).astype(kind).tobytes()
        offsets = [len(content), len(content) + len(x)]
        header[name] = {"dtype": name, "shape": [3], "data_offsets": offsets}
        content += x
    found = read_safetensors(written(tmp_path, header, content))
    assert found.keys() == kinds.keys()
    for name, kind in kinds.items():
        assert found[name].dtype == kind
        assert found[name].astype(np.float64).tolist() == [1, 2, 100], name


def test_a_type_that_is_not_read_is_no_damage(tmp_path):
    header = {"x": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]}}
    with pytest.raises(DataError, match="x has the type I8, which is not read") as error:
        read_safetensors(written(tmp_path, header, bytes(3)))
    assert "Download" not in str(error.value)


@pytest.mark.parametrize("offsets", [[[0, 8], [4, 12]], [[0, 4], [8, 12]], [[0, 8], [8, 10]]])
def test_arrays_that_overlap_or_leave_bytes_over_are_refused(offsets, tmp_path):
    header = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end) in zip("ab", offsets, strict=True)
    }
    with pytest.raises(DataError, match="its arrays overlap, or leave bytes over"):
        read_safetensors(written(tmp_path, header, bytes(12)))
