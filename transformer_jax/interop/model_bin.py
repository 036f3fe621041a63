"""CTranslate2's model.bin, binary versions 2 to 6: named arrays, and aliases of some of them.

All numbers are little-endian. A string is a uint16 length and that many bytes; the last byte is 0.
The file is
    uint32 version, string name of the specification, uint32 its revision, uint32 count
    count times: string name, uint8 rank, uint32 of each axis, type and size, the array's bytes
    from version 3: uint32 count, and count times: string alias, string name
From version 4, type and size are the number of the type (uint8) and of bytes (uint32). Before, they
are the bytes of one item (uint8: 4 is float32, 2 is int16, 1 is int8) and the number of items
(uint32).
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from transformer_jax.errors import DataError, UserError
from transformer_jax.files import is_stream

VERSIONS = range(2, 7)
# By the format's number of a type.
TYPES = tuple(np.dtype(one) for one in ("<f4", "i1", "<i2", "<i4", "<f2", ml_dtypes.bfloat16))
BY_ITEM_SIZE = {4: TYPES[0], 1: TYPES[1], 2: TYPES[2]}  # before version 4
SCALE = "_scale"  # NAME_scale: what an integer array was multiplied by


class ModelBin(NamedTuple):
    """The content of a model.bin."""

    version: int
    spec: str  # the name of the specification, such as "TransformerSpec"
    revision: int
    arrays: dict[str, np.ndarray]  # by name and alias; weights are float32


def read_model_bin(path: Path) -> ModelBin:
    """The arrays of a file; integer weights are divided by their scales, to float32.

    Raises:
      UserError: the file is missing or damaged, or is of another version.
    """
    if is_stream(path):
        raise DataError(f"{path} is a pipe or a device, not a file.")
    try:
        content = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from None
    except ValueError:  # an empty file
        raise DataError(f"{path} is empty. Download it again.") from None
    file = _Reader(content)
    try:
        version = file.number("I")
        if version not in VERSIONS:
            raise UserError(
                f"{path} has version {version} of CTranslate2's format; {VERSIONS[0]} to "
                f"{VERSIONS[-1]} can be read."
            )
        spec, revision = file.string(), file.number("I")
        arrays: dict[str, np.ndarray] = {}
        for _ in range(file.number("I")):
            name = file.string()
            arrays[name] = file.array(version)
        arrays = _as_numbers(arrays)
        if version >= 3:
            for _ in range(file.number("I")):
                alias = file.string()
                arrays[alias] = arrays[file.string()]
        if file.position != len(content):
            raise ValueError(f"{len(content) - file.position} bytes are left over")
    except (struct.error, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a model.bin: {error}. Download it again.") from None
    return ModelBin(version, spec, revision, arrays)


class _Reader:
    """Reads one thing after the other; ValueError or struct.error where there is not enough."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.position = content, 0

    def number(self, kind: str) -> int:
        """An unsigned number; `kind`: "B", "H" or "I" as in `struct`."""
        (found,) = struct.unpack(f"<{kind}", self.bytes(struct.calcsize(kind)).tobytes())
        return int(found)

    def string(self) -> str:
        found = self.bytes(self.number("H")).tobytes()
        if not found.endswith(b"\0"):
            raise ValueError("a name does not end in 0")
        return found[:-1].decode()

    def array(self, version: int) -> np.ndarray:
        """An array: its shape, its type and its bytes."""
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, size = self.number("B"), self.number("I")
        if version >= 4:
            if kind >= len(TYPES):
                raise ValueError(f"no type has the number {kind}")
            dtype = TYPES[kind]
        else:
            dtype, size = BY_ITEM_SIZE[kind], kind * size
        return self.bytes(size).view(dtype).reshape(shape)

    def bytes(self, size: int) -> np.ndarray:
        """The next bytes, as a map of the file."""
        end = self.position + size
        if end > len(self.content):
            raise ValueError("it ends too early")
        found = self.content[self.position : end]
        self.position = end
        return found


def _as_numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights as float32: an integer of a row is divided by the row's scale, or by the array's."""
    found: dict[str, Any] = {}
    for name, x in arrays.items():
        if name.removesuffix(SCALE) in arrays and name.endswith(SCALE):
            continue
        if x.ndim and np.issubdtype(x.dtype, np.integer) and name.endswith("weight"):
            scale = np.asarray(arrays[name + SCALE], np.float32)
            x = x / scale.reshape(scale.shape + (1,) * (x.ndim - scale.ndim))
        found[name] = x.astype(np.float32) if x.dtype in TYPES[4:] else x
    return found
