"""Recordings and features of the speech example."""

import keras
import numpy as np
import pytest
from recordings import write_recordings, write_wav

from examples.speech import new_speakers, recognize, spoken_digits, stream
from examples.speech.log_mel import LogMel
from examples.speech.spoken_digits import Recording


def recordings(*names):
    """Recordings with a sample each, whose value is their index."""
    parts = [name.split("_") for name in names]
    return [
        Recording(word, speaker, int(number), np.full(1, index, "float32"))
        for index, (word, speaker, number) in enumerate(parts)
    ]


def names(chosen):
    return [f"{each.word}_{each.speaker}_{each.number}" for each in chosen]


def test_a_recording_has_its_word_speaker_number_and_samples(tmp_path):
    write_wav(tmp_path / "7_jackson_32.wav", [0, 16384, -32768])
    [recording] = spoken_digits.read(tmp_path)
    assert recording[:3] == ("seven", "jackson", 32)
    assert recording.audio.tolist() == [0.0, 0.5, -1.0]


def test_a_folder_without_recordings_or_with_another_format_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"7_jackson_32\.wav, from https://github"):
        spoken_digits.read(tmp_path)
    write_wav(tmp_path / "0_anna_0.wav", [0], rate=16000)
    with pytest.raises(ValueError, match=r"8000 samples per second.*0_anna_0\.wav"):
        spoken_digits.read(tmp_path)


def test_parts_of_the_recordings_are_disjoint():
    data = recordings("one_anna_0", "one_anna_4", "one_anna_5", "one_bela_9", "one_bela_10")
    training, test = spoken_digits.split(data)
    assert names(training) == ["one_anna_5", "one_bela_9", "one_bela_10"]
    assert names(test) == ["one_anna_0", "one_anna_4"]
    training, validation = spoken_digits.split(data, is_validation=True)
    assert names(training) == ["one_bela_10"]
    assert names(validation) == ["one_anna_5", "one_bela_9"]


def test_numbers_join_different_recordings_of_a_speaker():
    data = recordings(*(f"one_{name}_{i}" for name in ("anna", "bela") for i in range(5)))
    numbers = spoken_digits.numbers(data, 2, np.random.default_rng(1))
    assert len(numbers) == 4  # the fifth recording of each speaker is left over
    joined = [recording for spoken, _, _ in numbers for recording in spoken]
    assert len(set(names(joined))) == 8
    for spoken, audio, ends in numbers:
        assert len({recording.speaker for recording in spoken}) == 1
        assert [audio[end - 1] for end in ends] == [recording.audio[0] for recording in spoken]
        assert len(audio) == ends[-1]


def test_batches_have_the_letters_of_their_words(tmp_path):
    data = spoken_digits.read(write_recordings(tmp_path / "recordings"))
    batches = recognize.draw_batches(data, np.random.default_rng(1), size=20)
    inputs, ids = next(batches)
    assert inputs["audio"].shape == (20, recognize.TRAINING_SAMPLES)
    texts = [recognize.decode(row) for row in ids]
    assert {len(text.split()) for text in texts} == {1, 2, 3}
    assert set(" ".join(texts).split()) <= set(spoken_digits.WORDS)
    assert (inputs["before"][:, 1:] == ids[:, :-1]).all() and (inputs["before"][:, 0] == 2).all()


def test_the_log_mel_layer_has_its_peak_in_the_band_of_a_tone():
    time = np.arange(1650) / 8000
    output = keras.ops.convert_to_numpy(LogMel()(np.sin(2 * np.pi * 1000 * time)[None]))
    assert output.shape == LogMel().compute_output_shape((1, 1650)) == (1, 15, 32)
    mel = 2595 * np.log10(1 + np.array([1000, 4000]) / 700)
    band = 33 * mel[0] / mel[1] - 1  # the centers of 32 bands divide the scale into 33 parts
    assert abs(output[0].mean(axis=0).argmax() - band) <= 0.5


def test_each_speaker_is_left_out_once(tmp_path):
    folder = write_recordings(tmp_path / "recordings")
    rates = new_speakers.main([str(folder), "--quick", "--output", str(tmp_path)])
    assert rates.keys() == {"anna", "bela"} and min(rates.values()) > 0


@pytest.fixture(scope="module")
def stream_models():
    return stream.build(8)


# Random weights with which the attention moves forward: in one case the end token reads an
# annotation, in the other the last letters read none.
@pytest.mark.parametrize("seed, stops", [(736, 7), (605, 8)])
def test_a_stream_writes_the_letters_of_the_whole_utterance_when_their_audio_arrives(
    stream_models, seed, stops
):
    training, recognizer, encoder, decoder = stream_models
    rng = np.random.default_rng(seed)
    for variable in training.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(rng.normal(size=variable.shape))
    envelope = np.exp(3 * np.sin(np.arange(12000) / 900))
    audio = (np.random.default_rng(0).normal(size=12000) * envelope).astype("float32")
    ids, weights = map(keras.ops.convert_to_numpy, recognizer(audio[None]))
    text = recognize.decode(ids[0])
    positions = [int(row.argmax()) for row in weights[0] if row.any()]
    assert len(positions) == stops and len(set(positions)) > 2
    # An annotation depends on 9 frames of 200 samples, 100 apart. The next begins 400 later.
    arrivals = [1000 + 400 * position for position in positions][: len(text)]
    arrivals += [12000] * (len(text) - len(arrivals))  # letters that are written at the end
    functions = stream.run_keras(encoder), stream.run_keras(decoder)
    for piece in (400, 1100, 12000):
        written = stream.transcribe(stream.Stream(*functions, 8), audio, piece)
        assert written.text == text
        assert written.times == [min(-(-time // piece) * piece, 12000) for time in arrivals]
