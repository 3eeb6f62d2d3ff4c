"""Log-mel features as a Keras layer, which is saved and exported with the model."""

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="examples")
class LogMel(keras.layers.Layer):
    """Log-mel energies of audio: windowed Fourier transform, mel filters, logarithm.

    The transform is a convolution with fixed kernels: every backend and onnxruntime support it.

    Args:
        bands: Number of mel bands.
        rate: Sample rate in Hz.
        frame: Samples per frame.
        hop: Samples from one frame to the next.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        audio: `(B, S)` float tensor.

    Returns:
        `(B, T, bands)` float tensor of the `T` frames that are completely inside of the audio.
    """

    def __init__(self, bands=32, rate=8000, frame=200, hop=100, **kwargs):
        super().__init__(**kwargs)
        self.bands, self.rate, self.frame, self.hop = bands, rate, frame, hop

    def call(self, audio):
        spectrum = ops.conv(
            ops.expand_dims(audio, -1),
            ops.convert_to_tensor(self._fourier_kernels()),
            strides=self.hop,
            padding="valid",
            data_format="channels_last",
        )
        bins = self.frame // 2
        power = ops.square(spectrum[..., :bins]) + ops.square(spectrum[..., bins:])  # (B, T, bins)
        return ops.log(ops.matmul(power, ops.convert_to_tensor(self._mel_filters())) + 1e-5)

    def _fourier_kernels(self):
        """Return windowed cosines and sines, `(frame, 1, 2 * bins)`."""
        bins = np.arange(self.frame // 2)
        angles = 2 * np.pi * np.outer(np.arange(self.frame), bins) / self.frame
        window = np.hanning(self.frame)[:, None] / np.sqrt(self.frame)
        kernels = np.concatenate([window * np.cos(angles), window * np.sin(angles)], axis=1)
        return kernels[:, None].astype("float32")

    def _mel_filters(self):
        """Return triangular filters, half overlapping and evenly spaced in mel, `(bins, bands)`."""
        top = 2595 * np.log10(1 + self.rate / 2 / 700)
        edges = 700 * (10 ** (np.linspace(0, top, self.bands + 2) / 2595) - 1)
        low, middle, high = edges[:-2], edges[1:-1], edges[2:]
        hertz = (np.arange(self.frame // 2) * self.rate / self.frame)[:, None]
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        return np.maximum(0, np.minimum(rising, falling)).astype("float32")

    def compute_output_shape(self, audio_shape):
        batch, samples = audio_shape
        frames = None if samples is None else (samples - self.frame) // self.hop + 1
        return (batch, frames, self.bands)

    def get_config(self):
        sizes = {name: getattr(self, name) for name in ("bands", "rate", "frame", "hop")}
        return {**super().get_config(), **sizes}
