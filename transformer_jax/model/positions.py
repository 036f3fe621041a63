"""Positional encodings (Vaswani et al. 2017, section 3.5).

Dimension key
  L length   D d_model
"""

import numpy as np


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle.

    Sine and cosine interleave, as the equation says; other code often puts them side by side in
    halves, which is a permutation of the features and not this equation.

    Args:
      length: number of positions, 0 to length - 1.
      d_model: even number of features.

    Returns:
      float32 `[length, d_model]`, rounded from float64.

    Raises:
      ValueError: d_model is odd.

    Source: Vaswani et al. 2017, section 3.5.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sinusoids are pairs of a sine and a cosine.")
    wavelengths = 10_000.0 ** (np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] / wavelengths[None, :]
    table_LD = np.empty((length, d_model))
    table_LD[:, 0::2] = np.sin(angles)
    table_LD[:, 1::2] = np.cos(angles)
    return table_LD.astype(np.float32)
