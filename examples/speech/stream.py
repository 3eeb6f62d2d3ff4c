"""Streaming speech recognition: letters are written while the speaker talks.

The encoder of `recognize.py` reads the future, so nothing is known before the end. Here it is a
recurrent layer that moves forward only. The attention is monotonic (arXiv 1704.00784): a letter
reads the first annotation that it stops at, and waits until there is one. `Stream` runs both graphs
of the exported model, with memory and time per second of audio that do not grow.

    python -m examples.speech.stream free-spoken-digit-dataset/recordings
"""

import sys
import time

import keras
import numpy as np
from keras import ops

from examples.common import export_and_compare, parse_options
from examples.speech import recognize, spoken_digits
from examples.speech.spoken_digits import SAMPLE_RATE
from keras_bahdanau import AttentiveDecoder, BahdanauAttention, DeepOutput
from keras_bahdanau.layers import DecoderState, MonotonicAttention
from keras_bahdanau.search import Decode, GreedySearch
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.pictures.style import COLORS, saved_figure

# Samples that an annotation depends on, and from one annotation to the next.
WINDOW, HOP = 1000, 400
PIECE = SAMPLE_RATE // 10  # samples that arrive at once


def build(units):
    """Return the training model, the recognizer of whole utterances and two models for `Stream`.

    They share their layers:

    - training: `(audio, previous letters) -> logits`
    - recognizer: `audio -> letters, weights`
    - encoder: `audio, state -> annotations, next state`
    - decoder: `letter, annotations, weights, state -> logits, next weights, next state`
    """
    features = recognize.front_end(units)
    recurrent = keras.layers.GRU(units, return_sequences=True, return_state=True)
    embedding = keras.layers.Embedding(len(recognize.TOKENS), units)
    # Noise makes training prefer probabilities near 0 and 1, which inference rounds.
    attention = MonotonicAttention(BahdanauAttention(units), sigmoid_noise=2.0)
    decoder = AttentiveDecoder(
        keras.layers.GRUCell(units), attention, DeepOutput(units), query_state="current"
    )
    head = keras.layers.Dense(len(recognize.TOKENS))

    audio = keras.Input((None,), name="audio")
    annotations, _ = recurrent(features(audio))
    previous = keras.Input((None,), dtype="int32", name="before")
    outputs = decoder(embedding(previous), keras.layers.Dropout(0.2)(annotations))
    training = keras.Model({"audio": audio, "before": previous}, head(outputs))
    search = GreedySearch(forbidden=range(EOS))
    search = Decode(decoder, embedding, head, search, recognize.MAX_LENGTH)
    recognizer = keras.Model(audio, search(annotations))

    state = keras.Input((units,), name="state")
    encoder = keras.Model([audio, state], recurrent(features(audio), initial_state=state))

    letter = keras.Input((), dtype="int32", name="letter")
    source = keras.Input((None, units), name="annotations")
    weights = keras.Input((None,), name="weights")
    output, next_state, next_weights = decoder.step(
        embedding(letter), DecoderState((state,), weights), decoder.memory(source)
    )
    step = keras.Model(
        [letter, source, weights, state], [head(output), next_weights, next_state.cell[0]]
    )
    return training, recognizer, encoder, step


class Stream:
    """Recognizes one utterance that arrives in pieces.

    Args:
        encoder: Function `(audio, state) -> annotations, next state`, with NumPy arrays of one row.
        decoder: Function `(letter, annotations, weights, state) -> logits, next weights, next
            state`.
        units: Width of both states.
        max_length: Maximum number of letters. An untrained model may never end.

    Attributes:
        text: The text up to now.
        times: For each letter, the number of samples that had arrived when it was written.
        is_finished: Whether the text is complete. Later audio is not read.
    """

    def __init__(self, encoder, decoder, units, max_length=recognize.MAX_LENGTH):
        self._encoder, self._decoder = encoder, decoder
        self._audio = np.zeros(0, "float32")  # samples that the next annotations depend on
        self._samples = 0
        self._encoder_state = self._decoder_state = np.zeros((1, units), "float32")
        self._letter, self._max_length = BOS, max_length
        # Those that the next letter may read.
        self._annotations = np.zeros((1, 0, units), "float32")
        self.text, self.times, self.is_finished = "", [], False

    def write(self, audio):
        """Read a piece of audio, `(S,)` float32 samples, and return the letters that it adds."""
        if self.is_finished:
            return ""
        length = len(self.text)
        self._samples += len(audio)
        self._audio = np.concatenate([self._audio, audio])
        count = (len(self._audio) - WINDOW) // HOP + 1
        if count > 0:
            annotations, self._encoder_state = self._encoder(self._audio[None], self._encoder_state)
            self._audio = self._audio[count * HOP :]
            self._annotations = np.concatenate([self._annotations, annotations], axis=1)
        while self._annotations.shape[1] and not self.is_finished:
            # The last letter read the first of these annotations, or one before them.
            previous = np.eye(1, self._annotations.shape[1], dtype="float32")
            logits, weights, state = self._step(self._annotations, previous)
            if weights.any():
                self._annotations = self._annotations[:, weights.argmax() :]
                self._add(logits, state)
            else:
                # This letter reads none of them. The state stays, and so does its query.
                self._annotations = self._annotations[:, :0]
        return self.text[length:]

    def close(self):
        """End the utterance, and return the letters that are left. They read no annotation."""
        length = len(self.text)
        annotations = np.zeros((1, 1, self._annotations.shape[-1]), "float32")
        while not self.is_finished:
            logits, _, state = self._step(annotations, np.zeros((1, 1), "float32"))
            self._add(logits, state)
        return self.text[length:]

    def _step(self, annotations, previous_weights):
        letter = np.array([self._letter], "int32")
        return self._decoder(letter, annotations, previous_weights, self._decoder_state)

    def _add(self, logits, state):
        self._letter, self._decoder_state = EOS + int(logits[0, EOS:].argmax()), state
        if self._letter != EOS:
            self.text += recognize.TOKENS[self._letter]
            self.times.append(self._samples)
        self.is_finished = self._letter == EOS or len(self.text) == self._max_length


def transcribe(stream, audio, piece=PIECE):
    """Write audio to a `Stream` in pieces of `piece` samples, close it and return it."""
    for start in range(0, len(audio), piece):
        stream.write(audio[start : start + piece])
    stream.close()
    return stream


def run_keras(model):
    """Return a function of NumPy arrays that calls a Keras model."""
    return lambda *arrays: [ops.convert_to_numpy(array) for array in model([*arrays])]


def run_graph(model, folder, inputs, names):
    """Export a model, and return a function of NumPy arrays that runs its graph on one thread.

    Args:
        model: A Keras model.
        folder: The artifact to write.
        inputs: List of NumPy arrays for which the graph is compared with the model.
        names: Names of the outputs.
    """
    import onnxruntime

    export_and_compare(model, inputs, folder, names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    feeds = [tensor.name for tensor in model.inputs]
    return lambda *arrays: session.run(names, dict(zip(feeds, arrays, strict=True)))


def delays(stream, number):
    """Return seconds from the end of each word to its last letter, for a text without errors."""
    recordings, _, ends = number
    lengths = np.cumsum([len(each.word) + 1 for each in recordings]) - 2  # index of the last letter
    return [(stream.times[i] - end) / SAMPLE_RATE for i, end in zip(lengths, ends, strict=True)]


def draw_picture(stream, number, path):
    """Draw the log-mel frames of a number, and below them when each letter was written."""
    _, audio, ends = number
    seconds = len(audio) / SAMPLE_RATE
    with saved_figure(path, 7, 6) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
        recognize.draw_frames(audio, top)
        times = [samples / SAMPLE_RATE for samples in stream.times]
        bottom.plot(times, range(len(times)), "o", label="letter written")
        for i, end in enumerate(ends):
            label = "end of a word" if i == 0 else None
            bottom.axvline(end / SAMPLE_RATE, color=COLORS[1], linestyle="--", label=label)
        bottom.set_yticks(range(len(stream.text)), [*stream.text])
        bottom.set(xlabel="seconds", ylabel="letter", xlim=(0, max(seconds, *times) + 0.1))
        bottom.invert_yaxis()
        bottom.legend()


def main(arguments=None):
    """Train, compare streams with whole utterances, draw one, and return rates and delays."""
    args = parse_options("stream", __doc__, arguments, data=recognize.DATA)
    epochs, steps, units, count = (1, 2, 8, 2) if args.quick else (24, 60, 64, None)
    recordings = spoken_digits.read(args.data)
    training_part, unseen = spoken_digits.split(recordings, args.validation)
    rng = np.random.default_rng(args.unseen)
    words = spoken_digits.numbers(unseen, 1, rng)
    numbers = spoken_digits.numbers(unseen, recognize.DIGITS, rng)
    training, recognizer, encoder, decoder = build(units)
    recognize.train((training, recognizer), training_part, epochs, steps, args.training)
    results = {}
    for kind, spoken in [("words", words), ("numbers", numbers)]:
        texts, _ = recognize.transcribe(recognizer, [audio for _, audio, _ in spoken])
        results[f"{kind}, whole"] = recognize.word_error_rate(texts, spoken)
    state = np.zeros((1, units), "float32")
    functions = run_keras(encoder), run_keras(decoder)
    if args.export:
        audio = numbers[0][1][None]
        annotations, _ = functions[0](audio, state)
        weights = np.eye(1, annotations.shape[1], dtype="float32")
        letter = np.array([BOS], "int32")
        functions = [
            run_graph(
                encoder, args.output / "encoder", [audio, state], ["annotations", "next_state"]
            ),
            run_graph(
                decoder,
                args.output / "decoder",
                [letter, annotations, weights, state],
                ["logits", "next_weights", "next_state"],
            ),
        ]
    numbers = numbers[:count]
    audios = [np.append(audio, np.zeros(recognize.SILENCE, "float32")) for _, audio, _ in numbers]
    began = time.process_time()
    streams = [transcribe(Stream(*functions, units), audio) for audio in audios]
    seconds = time.process_time() - began
    results["numbers, stream"] = recognize.word_error_rate([s.text for s in streams], numbers)
    results["CPU ms per second of audio"] = 1e3 * seconds * SAMPLE_RATE / sum(map(len, audios))
    correct = [
        (stream, number)
        for stream, number in zip(streams, numbers, strict=True)
        if stream.text == recognize.text_of(number[0])
    ]
    if correct:
        late = 1000 * np.concatenate([delays(*each) for each in correct])
        results["delay in ms, median"], results["delay in ms, 95 %"] = np.quantile(
            late, [0.5, 0.95]
        )
    print({name: round(float(value), 2) for name, value in results.items()})
    draw_picture(*(correct or [(streams[0], numbers[0])])[0], args.output / "stream.png")
    recognizer.save(args.output / "model.keras")
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
