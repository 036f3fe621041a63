"""Pictures and recordings as rows of numbers: by hand, files of all kinds, what cannot be read."""

import numpy as np
import pytest
import soundfile
from PIL import Image

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.batches import Packed
from transformer_jax.text.pictures import patches, read_picture
from transformer_jax.text.speech import Masks, log_mel, mel_filters, normalized, read_recording

# Pictures as patches -----------------------------------------------------------------------------


PICTURES = DataConfig(src_kind="pictures", patch_height=2, patch_width=3)


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
    got = read_picture(path, PICTURES)
    np.testing.assert_allclose(got[0], [-1, -0.6, 1, -1, -1, -1], atol=1e-6)
    np.testing.assert_allclose(got[1], [-1, 1, 1, 1, 1, 1], atol=1e-6)
    shown = np.zeros((2, 6, 4), np.uint8)
    shown[:, 3:, 3] = 255  # black, and transparent on the left
    Image.fromarray(shown).save(path)
    np.testing.assert_array_equal(read_picture(path, PICTURES), [[1] * 6, [-1] * 6])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_every_usual_type_of_pixels_is_read(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("L", (6, 4), 255).convert(mode).save(path)
    np.testing.assert_allclose(read_picture(path, PICTURES), np.ones((4, 6)), atol=0.02)


def test_a_picture_that_cannot_be_read_says_why(tmp_path, recwarn):
    path = tmp_path / "a.png"
    two = {"save_all": True, "append_images": [Image.new("L", (6, 4), 99)]}
    for picture, how, why in (
        (Image.new("1", (10_000, 10_000)), {}, "10000 x 10000 pixels; at most 16,777,216"),
        (Image.new("1", (20_000, 10_000)), {}, "not a picture that can be read"),
        (Image.new("L", (6, 4), 0), two, "an animation of 2 pictures"),
        (Image.new("I;16", (6, 4)), {}, "pixels of the type I;16"),
    ):
        picture.save(path, **how)
        with pytest.raises(DataError, match=why):
            read_picture(path, PICTURES)
    assert not recwarn.list
    Image.new("L", (6, 4), 0).save(path, format="MPO", **two)  # cameras' JPEGs
    np.testing.assert_array_equal(read_picture(path, PICTURES), -np.ones((4, 6)))
    Image.effect_noise((60, 40), 50).save(path)
    for content in (b"", b"text", path.read_bytes()[:900]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a picture that can be read"):
            read_picture(path, PICTURES)


# Log-mel bands against slow NumPy ----------------------------------------------------------------


RATE = 8_000
SPEECH = DataConfig(src_kind="speech", sample_rate=RATE, mel_bands=5, stacked_frames=3)


def noise(seconds: float, channels: int | None = None) -> np.ndarray:
    shape = (round(seconds * RATE),) if channels is None else (round(seconds * RATE), channels)
    return np.random.default_rng(0).uniform(-0.5, 0.5, shape)


def test_a_frame_is_the_log_of_the_power_in_each_band():
    """A Fourier transform written as sums, and triangles between corners that are equal in mel."""
    samples = noise(0.05)
    got = log_mel(samples.astype(np.float32), RATE, 5)
    size, window, step = 256, 200, 80
    assert len(got) == 4, "200 samples, then 80 more each: 440 are reached by the fourth"
    padded = np.pad(samples, (0, window + 3 * step - len(samples)))
    hann = [0.5 - 0.5 * np.cos(2 * np.pi * n / (window - 1)) for n in range(window)]
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = [700 * (10 ** (top * n / 6 / 2595) - 1) for n in range(7)]
    for frame in range(4):
        own = padded[frame * step : frame * step + window] * hann
        power = [
            abs(sum(x * np.exp(-2j * np.pi * k * n / size) for n, x in enumerate(own))) ** 2
            for k in range(size // 2 + 1)
        ]
        for band in range(5):
            low, peak, high = corners[band : band + 3]
            total = 0.0
            for k, found in enumerate(power):
                at = k * RATE / size
                if low < at <= peak:
                    total += found * (at - low) / (peak - low)
                elif peak < at < high:
                    total += found * (high - at) / (high - peak)
            assert got[frame, band] == pytest.approx(np.log(total), abs=1e-4)


def test_bands_share_each_frequency_and_silence_is_not_minus_infinity(caplog):
    filters = mel_filters(16_000, 512, 10)
    peaks = filters.argmax(0)
    inner = filters[peaks[0] : peaks[-1]]
    np.testing.assert_allclose(inner.sum(1), 1, atol=1e-12)
    assert not caplog.text
    mel_filters(8_000, 256, 128)
    assert "6 of 128 mel bands are narrower" in caplog.text
    assert np.isfinite(log_mel(np.zeros(10, np.float32), RATE, 5)).all()
    assert log_mel(np.zeros(1, np.float32), RATE, 5).shape == (1, 5)


def test_each_band_has_mean_0_and_variance_1():
    frames = np.random.default_rng(0).normal(3, 2, (50, 4))
    frames[:, 2] = 7
    got = normalized(frames)
    np.testing.assert_allclose(got.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(got.std(0), [1, 1, 0, 1])


@pytest.mark.parametrize(
    "name, subtype",
    [("a.wav", "PCM_16"), ("a.wav", "PCM_24"), ("a.wav", "FLOAT"), ("a.flac", None)],
)
def test_frames_are_stacked_whatever_the_file_s_type(tmp_path, name, subtype):
    soundfile.write(tmp_path / name, noise(0.1), RATE, subtype)
    got = read_recording(tmp_path / name, SPEECH)
    frames = normalized(log_mel(noise(0.1).astype(np.float32), RATE, 5))
    assert len(frames) == 9 and got.shape == (3, 15)
    np.testing.assert_allclose(got.reshape(9, 5), frames, atol=0.02)


def test_missing_frames_are_0_and_channels_are_averaged(tmp_path):
    both = noise(0.08, channels=2)
    soundfile.write(tmp_path / "two.wav", both, RATE, "FLOAT")
    soundfile.write(tmp_path / "one.wav", both.mean(1), RATE, "FLOAT")
    two, one = (read_recording(tmp_path / f"{name}.wav", SPEECH) for name in ("two", "one"))
    np.testing.assert_allclose(two, one, atol=1e-5)
    assert len(two) == 3 and not two[2, 5:].any() and two[2, :5].any(), "7 frames of 9"


def test_a_recording_that_cannot_be_read_says_why(tmp_path):
    path, one = tmp_path / "a.wav", noise(0.1)
    opposite = np.stack([one, -one], 1)
    for samples, rate, subtype, why in (
        (one, 44_100, None, "44100 samples .* and the run's data.sample_rate=8000"),
        (noise(0), RATE, None, "the recording is empty"),
        (opposite, RATE, None, "nothing is heard in it: .* its channels cancel out"),
        (np.array([0.1, np.nan]), RATE, "FLOAT", "no numbers"),
    ):
        soundfile.write(path, samples, rate, subtype)
        with pytest.raises(DataError, match=why):
            read_recording(path, SPEECH)
    soundfile.write(path, one, RATE)
    whole, rows = path.read_bytes(), read_recording(path, SPEECH)
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="it is cut off"):
        read_recording(path, SPEECH)
    for length, why in ((10_000, "more samples than it has"), (0, "it was not closed")):
        path.write_bytes(whole[:40] + length.to_bytes(4, "little") + whole[44:])
        with pytest.raises(DataError, match=why):
            read_recording(path, SPEECH)
    for kind in ("AIFF", "OGG"):  # such files can be cut off without an error
        soundfile.write(tmp_path / f"a.{kind}", noise(0.1), RATE, format=kind)
        with pytest.raises(DataError, match=f"it is {kind}: convert it to WAV or FLAC"):
            read_recording(tmp_path / f"a.{kind}", SPEECH)
    for size in (0xFFFFFFFF, 0x7FFFF024, 0):  # as programs write it into a pipe
        path.write_bytes(whole[:4] + size.to_bytes(4, "little") + whole[8:])
        np.testing.assert_array_equal(read_recording(path, SPEECH), rows)
    for content in (b"", b"text", path.read_bytes()[:20]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a recording that can be read"):
            read_recording(path, SPEECH)


# SpecAugment ---------------------------------------------------------------------------------


def packed_rows() -> Packed:
    """Two recordings in the first row and one in the second; 4 bands, 3 frames a position."""
    segments = np.array([[1] * 20 + [2] * 10 + [0] * 2, [1] * 32], np.int32)
    features = np.ones((2, 32, 12), np.float32)
    return Packed(segments, segments, segments, features)


def hidden(masks: Masks, rows: list[int]) -> np.ndarray:
    """Which numbers are hidden: booleans [row, frame, band]."""
    found = masks(packed_rows(), np.array(rows)).features
    assert set(np.unique(found)) <= {0.0, 1.0}
    return (found == 0).reshape(2, 96, 4)


def test_ranges_of_bands_and_of_frames_are_hidden():
    bands, counts, frames, few = np.zeros(4), set(), [], []
    for row in range(200):
        of_bands = hidden(Masks(2, 0, 4, 0), [row, row + 1])[0, :60]
        assert (of_bands == of_bands[:1]).all(), "a band is hidden over the whole recording"
        counts.add(of_bands[0].sum())
        bands += of_bands[0]
        few.append(hidden(Masks(0, 4, 4, 0), [row, row + 1])[0, :60, 0].sum())
        of_frames = hidden(Masks(0, 100, 4, 0), [row, row + 1])[0]
        assert (of_frames == of_frames[:, :1]).all()
        frames += [of_frames[:60, 0].sum(), of_frames[60:90, 0].sum()]
        assert not of_frames[90:].any(), "padding stays as it is"
    assert (bands > 20).all() and counts == {0, 1, 2}, "two ranges of at most 1 band"
    assert max(few) == 6, "two ranges of at most 3 frames"
    assert max(frames[::2]) <= 24 and max(frames[1::2]) <= 12, "each range is at most a fifth"
    assert max(frames[::2]) > 15


def test_masks_follow_from_the_seed_and_the_row_s_number():
    masks = Masks(3, 30, 4, 0)
    both = hidden(masks, [5, 6])
    np.testing.assert_array_equal(hidden(masks, [5, 7])[0], both[0])
    assert (hidden(Masks(3, 30, 4, 1), [5, 6]) != both).any()
    assert (hidden(masks, [15, 6])[0] != both[0]).any()
    source = packed_rows()
    masks(source, np.array([5, 6]))
    assert source.features.all(), "the batch itself is not changed"
