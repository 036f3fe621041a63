"""Pictures as a source: patches in gray (Dosovitskiy et al. 2021, section 3.1)."""

import threading
import warnings
from pathlib import Path

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError

MOST_PIXELS = 1 << 24  # a picture is a sentence's worth of patches, not a poster
WHITE = 1.0
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
WRONG = (OSError, SyntaxError, ValueError, TypeError)  # what Pillow raises for damaged files
OPENING = threading.Lock()  # filters of warnings are those of all threads


def read_picture(path: Path, data: DataConfig) -> np.ndarray:
    """The patches of a picture: float32 `[patches, height * width]`, each value from -1 to 1.

    Colors become gray; what is transparent becomes white.

    Raises:
      UserError: it is no picture, or it is animated, too large or too deep.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise ConfigError("data.src_kind='pictures' needs Pillow: pip install pillow.") from None
    try:
        with OPENING, warnings.catch_warnings():  # the limit below is lower than Pillow's
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(path, formats=FORMATS)
        with opened as image:
            width, height = image.size
            if width * height > MOST_PIXELS:  # before its pixels are decoded
                raise DataError(f"{width} x {height} pixels; at most {MOST_PIXELS:,} are read.")
            pictures = getattr(image, "n_frames", 1)
            if pictures > 1 and image.format != "MPO":  # a JPEG with a preview, or a second view
                raise DataError(f"an animation of {pictures} pictures; give one picture.")
            if image.mode[0] in "IF":
                raise DataError(f"pixels of the type {image.mode}; save it with 8 bits a color.")
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                white = Image.new("RGBA", upright.size, "white")
                upright = Image.alpha_composite(white, upright.convert("RGBA"))
            gray = np.asarray(upright.convert("L"), np.float32)
    except (*WRONG, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"not a picture that can be read ({error}).") from None
    return patches(gray / 127.5 - 1, data.patch_height, data.patch_width)


def patches(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """A picture's patches, row by row: `[patches, height * width]`; white fills the last ones up.

    Args:
      pixels: from -1 to 1 `[rows, columns]`.
      height: of a patch, pixels.
      width: of a patch, pixels.
    """
    missing = [(0, -pixels.shape[0] % height), (0, -pixels.shape[1] % width)]
    filled = np.pad(pixels, missing, constant_values=WHITE)
    down, across = filled.shape[0] // height, filled.shape[1] // width
    cut = filled.reshape(down, height, across, width).swapaxes(1, 2)
    return cut.reshape(down * across, height * width)
