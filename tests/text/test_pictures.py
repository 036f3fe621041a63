"""Pictures as patches, files of all kinds, and what cannot be read."""

import numpy as np
import pytest
from PIL import Image

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.pictures import patches, read_picture

DATA = DataConfig(src_kind="pictures", patch_height=2, patch_width=3)


def test_patches_are_cut_row_by_row_and_filled_up_with_white():
    pixels = np.arange(15.0).reshape(3, 5) / 15
    got = patches(pixels, 2, 3) * 15
    white = 15
    want = [
        [0, 1, 2, 5, 6, 7],
        [3, 4, white, 8, 9, white],
        [10, 11, 12, white, white, white],
        [13, 14, white, white, white, white],
    ]
    np.testing.assert_allclose(got, want)


def test_gray_is_from_minus_1_to_1_and_transparency_is_white(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.array([[0, 51, 255, 0], [0, 0, 0, 255]], np.uint8)).save(path)
    got = read_picture(path, DATA)
    np.testing.assert_allclose(got[0], [-1, -0.6, 1, -1, -1, -1], atol=1e-6)
    np.testing.assert_allclose(got[1], [-1, 1, 1, 1, 1, 1], atol=1e-6)
    shown = np.zeros((2, 6, 4), np.uint8)
    shown[:, 3:, 3] = 255  # black, and transparent on the left
    Image.fromarray(shown).save(path)
    np.testing.assert_array_equal(read_picture(path, DATA), [[1] * 6, [-1] * 6])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_every_usual_type_of_pixels_is_read(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("L", (6, 4), 255).convert(mode).save(path)
    np.testing.assert_allclose(read_picture(path, DATA), np.ones((4, 6)), atol=0.02)


def test_what_cannot_be_read_says_why(tmp_path, recwarn):
    path = tmp_path / "a.png"
    Image.new("1", (10_000, 10_000)).save(path)
    with pytest.raises(DataError, match="10000 x 10000 pixels; at most 16,777,216"):
        read_picture(path, DATA)
    Image.new("1", (20_000, 10_000)).save(path)
    with pytest.raises(DataError, match="not a picture that can be read"):
        read_picture(path, DATA)
    assert not recwarn.list
    two = [Image.new("L", (6, 4), n) for n in (0, 99)]
    two[0].save(path, save_all=True, append_images=two[1:])
    with pytest.raises(DataError, match="an animation of 2 pictures"):
        read_picture(path, DATA)
    Image.new("I;16", (6, 4)).save(path)
    with pytest.raises(DataError, match="pixels of the type I;16"):
        read_picture(path, DATA)
    Image.effect_noise((60, 40), 50).save(path)
    for content in (b"", b"text", path.read_bytes()[:900]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a picture that can be read"):
            read_picture(path, DATA)
