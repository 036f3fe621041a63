"""The safetensors format, against the package where it is installed."""

import ml_dtypes
import numpy as np
import pytest

from transformer_jax.interop.safetensors import read_safetensors, safetensors_bytes

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.weight": np.full((1,), -0.5, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(ARRAYS))
    found = read_safetensors(path)
    assert found.keys() == ARRAYS.keys()
    for name, x in ARRAYS.items():
        np.testing.assert_array_equal(found[name], x)


def test_the_package_reads_what_we_write_and_we_read_what_it_writes(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(ARRAYS))
    for name, x in package.load_file(path).items():
        np.testing.assert_array_equal(ARRAYS[name], x)
    kinds = (np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8)
    others = {np.dtype(kind).name: np.arange(5).astype(kind) for kind in kinds}
    package.save_file(others, path)
    found = read_safetensors(path)
    assert found.keys() == others.keys()
    for name, x in others.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name].astype(np.float64), x.astype(np.float64))
