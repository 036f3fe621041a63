"""The safetensors format: a length in 8 bytes, a JSON header, the arrays' bytes; it has no code."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.files import each_once

# By the format's names of types. The arrays are little-endian, as are NumPy's on x86 and ARM.
TYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, as maps of the file.

    Raises:
      DataError: the file is damaged, or has arrays of a type that is not in TYPES.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
        length = int.from_bytes(content[:8].tobytes(), "little")
        if len(content) < 8 or length > min(LARGEST_HEADER, len(content) - 8):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(content[8 : 8 + length].tobytes(), object_pairs_hook=each_once)
        data = content[8 + length :]
        header.pop("__metadata__", None)
        _check_offsets([about["data_offsets"] for about in header.values()], len(data))
        for name, about in header.items():  # a well-formed file may have others
            if about["dtype"] not in TYPES:
                raise DataError(
                    f"{path}: {name} has the type {about['dtype']}, which is not read: store "
                    f"float32. Types that are: {', '.join(TYPES)}."
                )
        return {name: _array(name, about, data) for name, about in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not a safetensors file: {error}. Download it again.") from None


def _check_offsets(offsets: list, size: int) -> None:
    """Raises ValueError unless the arrays fill the file, without gaps, and share no byte."""
    ends = [0, *(end for _, end in sorted(map(tuple, offsets)))]
    starts = [*(start for start, _ in sorted(map(tuple, offsets))), size]
    if starts != ends:
        raise ValueError("its arrays overlap, or leave bytes over")


def _array(name: str, about: Mapping, data: np.ndarray) -> np.ndarray:
    dtype = TYPES[about["dtype"]]
    shape = [int(size) for size in about["shape"]]
    start, end = about["data_offsets"]
    if not 0 <= start <= end <= len(data) or end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} is not inside the file")
    return data[start:end].view(dtype).reshape(shape)


def safetensors_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file with these arrays, float32, in the order of their names."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers reads only these
    parts = []
    end = 0
    for name, x in sorted(arrays.items()):
        part = np.ascontiguousarray(x, "<f4").tobytes()
        offsets = [end, end := end + len(part)]
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": offsets}
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the arrays begin at a multiple of 8 bytes
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
