"""Speech as a source: logarithms of mel bands, and SpecAugment, which hides parts of them."""

import dataclasses
import functools
import logging
from pathlib import Path

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.batches import Packed

log = logging.getLogger(__name__)

WINDOW, STEP = 0.025, 0.010  # seconds
LEAST_POWER = 1e-10  # where nothing is heard
MASKS, MASKED_SHARE = 2, 0.2  # ranges of each kind; frames of one, as a share of the recording
FORMATS = ("WAV", "WAVEX", "FLAC")  # of others nobody checks whether they are whole
OF_A_PIPE = 0x7FFFF000  # bytes; a header names at least this many if the length was not known
MASK_STREAM = 3  # keeps the masks' random numbers apart from those of the plan and the epochs


def read_recording(path: Path, data: DataConfig) -> np.ndarray:
    """The normalized log-mel bands of a recording: float32 `[positions, stacked frames * bands]`.

    Several channels are averaged.

    Raises:
      UserError: it is no recording, it is empty, or its sample rate is not data.sample_rate.
    """
    try:
        import soundfile
    except ImportError:
        raise ConfigError(
            "data.src_kind='speech' needs soundfile: pip install soundfile."
        ) from None
    try:
        if (kind := soundfile.info(path).format) not in FORMATS:
            raise DataError(f"it is {kind}: convert it to WAV or FLAC.")
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a name that means raw data
        raise DataError(f"not a recording that can be read ({error}).") from None
    if lacking := _missing(path):
        raise DataError(lacking)
    if rate != data.sample_rate:
        raise DataError(
            f"{rate} samples a second, and the run's data.sample_rate={data.sample_rate}. Convert "
            f"it, for example with `sox IN -r {data.sample_rate} OUT`."
        )
    if not len(samples):
        raise DataError("the recording is empty.")
    if not np.isfinite(samples).all():
        raise DataError("it has samples that are no numbers.")
    if not np.ptp(mono := samples.mean(1)):
        raise DataError("nothing is heard in it: it is silent, or its channels cancel out.")
    frames = normalized(log_mel(mono, rate, data.mel_bands))
    missing = -len(frames) % data.stacked_frames
    frames = np.pad(frames, ((0, missing), (0, 0)))
    return frames.reshape(-1, data.stacked_frames * data.mel_bands)


def _missing(path: Path) -> str:
    """What a WAV file lacks of what its header names; one of a pipe does not name its length."""
    size, at = path.stat().st_size, 12
    with path.open("rb") as file:
        if file.read(4) != b"RIFF":
            return ""
        named = int.from_bytes(file.read(4), "little")
        if size < named + 8 < OF_A_PIPE:
            return "it is cut off: its header names more bytes than it has."
        while at + 8 <= size:
            file.seek(at)
            name, length = file.read(4), int.from_bytes(file.read(4), "little")
            at += 8 + length + length % 2
            if name == b"data" and size < at - length % 2 < OF_A_PIPE:
                return "it is cut off: its header names more samples than it has."
            if name == b"data" and not length and size > at:
                return "its header names no samples, and there is more: it was not closed."
    return ""


def log_mel(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """The logarithm of the power in each mel band, every 10 ms: float32 `[frames, bands]`.

    A frame is a Hann window of 25 ms; the last one is filled up with silence.

    Args:
      samples: float32 `[samples]`, at least one.
      rate: samples a second.
      bands: number of bands, triangles from 0 Hz to rate / 2 that overlap by half.
    """
    window, step = round(WINDOW * rate), round(STEP * rate)
    count = 1 + max(0, -(-(len(samples) - window) // step))
    padded = np.pad(samples, (0, (count - 1) * step + window - len(samples)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step]
    size = 1 << (window - 1).bit_length()
    power = np.abs(np.fft.rfft(frames * np.hanning(window), size)) ** 2
    return np.log(np.maximum(power @ mel_filters(rate, size, bands), LEAST_POWER)).astype("f4")


@functools.lru_cache(maxsize=8)
def mel_filters(rate: int, size: int, bands: int) -> np.ndarray:
    """How much of each frequency a band takes: float64 `[size // 2 + 1, bands]`.

    The mel scale is 2595 log10(1 + f / 700), as in HTK.
    """
    highest = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, bands + 2) / 2595) - 1)  # Hz
    frequencies = np.arange(size // 2 + 1)[:, None] * rate / size
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    filters = np.maximum(0, np.minimum(rising, falling))
    if empty := int((filters.max(0) == 0).sum()):
        log.warning(
            "%d of %d mel bands are narrower than what a window tells apart at %d samples a "
            "second, so they are always 0: lower data.mel_bands",
            empty,
            bands,
            rate,
        )
    return filters


def normalized(frames: np.ndarray) -> np.ndarray:
    """The frames with mean 0 and variance 1 in each band; a band that never changes is 0."""
    deviation = frames.std(0)
    return (frames - frames.mean(0)) / np.where(deviation < 1e-5, 1, deviation)


@dataclasses.dataclass(frozen=True)
class Masks:
    """SpecAugment without its warping of time (Park et al. 2019, section 2): hidden ranges are 0.

    Each is `MASKS` ranges of a width that is drawn from 0 to one below the limit, at any place.
    """

    bands: int  # limit of a range of bands, data.masked_bands
    frames: int  # limit of a range of frames, data.masked_frames
    mel_bands: int
    seed: int

    def __call__(self, source: Packed, rows: np.ndarray) -> Packed:
        """The rows of a batch, masked.

        Args:
          source: recordings, packed into rows.
          rows: numbers of the rows in the endless stream, int `[rows]`; they decide the masks.
        """
        features = source.features.copy()
        for own, segments, number in zip(features, source.segments, rows, strict=True):
            random = np.random.default_rng([self.seed, MASK_STREAM, int(number)])
            begins = np.flatnonzero(np.diff(segments, prepend=0, append=0))
            for begin, end in zip(begins[:-1], begins[1:], strict=True):
                if segments[begin]:
                    self._mask(own[begin:end].reshape(-1, self.mel_bands), random)
        return source._replace(features=features)

    def _mask(self, frames: np.ndarray, random: np.random.Generator) -> None:
        """Masks one recording's frames in place: float32 `[frames, bands]`."""
        for _ in range(MASKS):
            most = min(self.bands, self.mel_bands)
            width = int(random.integers(most)) if most else 0
            first = int(random.integers(self.mel_bands - width + 1))
            frames[:, first : first + width] = 0
            width = int(random.integers(self.frames)) if self.frames else 0
            width = min(width, int(MASKED_SHARE * len(frames)))
            first = int(random.integers(len(frames) - width + 1))
            frames[first : first + width] = 0
