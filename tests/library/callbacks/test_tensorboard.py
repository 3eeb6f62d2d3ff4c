"""Event files for TensorBoard, read back as their format is specified."""

import struct

import keras
import pytest
from copy_task import compile_to_copy

from keras_bahdanau import RNNSearch, Tokenizer, TranslationDataset
from keras_bahdanau.callbacks import AlignmentImages, TensorBoardScalars
from keras_bahdanau.callbacks.event_file import EventFile, crc32c


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte, at = data[at], at + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def fields(message):
    """Return `{number: value}` of the fields of a protobuf message."""
    values, at = {}, 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 0:
            values[key >> 3], at = varint(message, at)
        else:
            fixed = {1: 8, 5: 4}.get(key & 7)
            size, at = varint(message, at) if fixed is None else (fixed, at)
            values[key >> 3], at = message[at : at + size], at + size
    return values


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def events(folder):
    """Return the messages of the only file in a folder, after checking their checksums."""
    (path,) = folder.iterdir()
    assert ".tfevents." in path.name  # TensorBoard looks for this name
    data, messages = path.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        message = data[12 : 12 + length]
        assert data[8:12] == masked(data[:8]) and data[12 + length :][:4] == masked(message)
        messages.append(fields(message))
        data = data[16 + length :]
    return messages


def test_every_second_epoch_writes_an_image_of_each_sentence(tmp_path):
    texts = ["a b", "b a"]
    tokenizer = Tokenizer.train(texts, texts, vocabulary_size=264)
    size = tokenizer.source_vocabulary_size
    sizes = dict(units=3, embedding_dim=3, attention_units=3, maxout_units=3)
    model = compile_to_copy(RNNSearch(size, size, **sizes, tokenizer=tokenizer))
    ids = [tokenizer.encode_source(text) for text in texts]
    images = AlignmentImages(tmp_path, texts, max_length=3, every=2)
    model.fit(TranslationDataset(ids, ids), epochs=4, verbose=0, callbacks=[images])
    version, *image_events = events(tmp_path)
    assert version[3] == b"brain.Event:2"
    assert [event[2] for event in image_events] == [2, 2, 4, 4]
    values = [fields(fields(event[5])[1]) for event in image_events]
    assert [value[1] for value in values] == [b"alignment/1", b"alignment/2"] * 2
    image = fields(values[0][4])
    assert image[4].startswith(b"\x89PNG")
    assert (image[2], image[1]) == struct.unpack(">II", image[4][16:24])


def dense_model(optimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def test_scalars_of_an_epoch_have_the_number_of_its_update(tmp_path):
    model = dense_model(keras.optimizers.SGD(0.25))
    scalars = TensorBoardScalars(tmp_path)
    scalars.set_model(model)
    scalars.on_train_begin()
    model.optimizer.iterations.assign(7)
    scalars.on_epoch_end(0, {"loss": 1.5})
    _, event = events(tmp_path)
    assert event[2] == 7
    # Both scalars are in repeated field 1 of the summary. `fields` returns the last one.
    assert b"loss" in event[5] and struct.pack("<f", 1.5) in event[5]
    last = fields(fields(event[5])[1])
    assert (last[1], struct.unpack("<f", last[2])) == (b"learning_rate", (0.25,))


def test_an_optimizer_with_several_learning_rates_writes_none(tmp_path):
    optimizers = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25))
    model = dense_model(keras.optimizers.MultiOptimizer(optimizers))
    x, y = keras.ops.ones((2, 2)), keras.ops.ones((2, 1))
    model.fit(x, y, epochs=1, verbose=0, callbacks=[TensorBoardScalars(tmp_path)])
    [event] = events(tmp_path)[1:]
    assert b"loss" in event[5] and b"learning_rate" not in event[5]


def test_two_event_files_in_a_folder_have_different_names(tmp_path):
    assert EventFile(tmp_path / "a").path != EventFile(tmp_path / "a").path


@pytest.mark.parametrize(
    "name, value",
    [*[("sources", value) for value in ("ab", ["ab", " "], [])], ("every", 0), ("max_length", 0)],
)
def test_invalid_arguments_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        AlignmentImages(tmp_path, **{"sources": ["ab"], name: value})
