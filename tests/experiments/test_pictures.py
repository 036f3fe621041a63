"""Text drawn as pictures, and grids of digits: what is drawn, changed and measured."""

import numpy as np
import pytest

from experiments import digit_grids, pictures
from experiments.digit_grids import grid_of, grids, share_on_cells, text_of
from experiments.pictures import CYRILLIC, drawn, in_cells, look_alike, noisy, swapped
from transformer_jax.evaluation.attention import Attention
from transformer_jax.text.pictures import patches


def test_look_alike_letters_are_drawn_alike():
    line = "The old man accepts a box."
    other = look_alike(line)
    assert other != line and len(other) == len(line)
    assert sum(a != b for a, b in zip(line, other, strict=True)) == 4
    np.testing.assert_array_equal(drawn(other), drawn(line))
    for latin, cyrillic in CYRILLIC.items():
        np.testing.assert_array_equal(drawn(latin), drawn(cyrillic), err_msg=latin)


def test_a_line_fits_into_its_picture():
    picture = drawn("Äpfel, Jacques?")
    assert picture.shape[0] == pictures.HEIGHT and (picture < 128).any()
    assert (picture[0] == 255).all(), "nothing is cut off above"
    assert drawn("x", 13).shape[1] >= drawn("x").shape[1]
    assert drawn("").shape == (pictures.HEIGHT, 1)


def test_each_patch_has_a_letter():
    line = "Wolf jagt."
    picture = in_cells(line)
    for n, letter in enumerate(line):
        cell = picture[:, pictures.WIDTH * n : pictures.WIDTH * (n + 1)]
        np.testing.assert_array_equal(cell, in_cells(letter))
        assert (cell.min() < 128) == (letter != " ")
    np.testing.assert_array_equal(in_cells(look_alike(line)), picture)


def test_changes_are_what_they_say():
    assert swapped("one three seven eight a nine") == "one three seven egiht a nine"
    changed = noisy(np.full((16, 2_000), 128, np.uint8), 0)
    assert changed.std() == pytest.approx(pictures.NOISE, rel=0.05)
    np.testing.assert_array_equal(changed, noisy(np.full((16, 2_000), 128, np.uint8), 0))


def test_a_grid_shows_its_digits_row_by_row(monkeypatch):
    images = np.zeros((10, 8, 8))
    images[:, 0, 0] = range(10)
    numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    grid = grid_of(images, numbers)
    np.testing.assert_array_equal(
        grid[::8, ::8], (255 - 255 * np.arange(1, 10).reshape(3, 3) / 16).astype(np.uint8)
    )
    assert (grid[1::8] == 255).all()
    assert text_of(list(range(10)), numbers[:3]) == "one two three"


def test_the_test_has_digits_that_training_never_has(monkeypatch):
    monkeypatch.setattr(digit_grids, "SIZES", {"train": 500, "test": 50})
    labels = [0] * 1_797
    train, test = ({n for one in grids(name, labels) for n in one} for name in ("train", "test"))
    assert max(train) < 1_400 <= min(test)


def test_attention_is_summed_over_each_digit_s_patches():
    """A picture in which only one digit is not white says which patches are that digit's."""
    weights_NHLM = np.zeros((2, 1, 10, 36), np.float32)
    for cell in range(9):
        pixels = np.full((24, 24), 1.0)
        down, across = divmod(cell, 3)
        pixels[8 * down : 8 * down + 8, 8 * across : 8 * across + 8] = 0
        own = (patches(pixels, 4, 4) == 0).all(1)
        assert own.sum() == 4
        weights_NHLM[-1, 0, cell, own] = 0.2
        weights_NHLM[-1, 0, cell, ~own] = 0.2 / 32
    cross = Attention(weights_NHLM, ["\u2581one"] * 9 + ["</s>"], [""] * 36, (1,))
    np.testing.assert_allclose(share_on_cells(cross), 0.8, rtol=1e-6)
