"""Event files for TensorBoard, read back as their format is specified."""

import struct

import keras
import pytest
from copy_task import compile_to_copy
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from keras_bahdanau import RNNSearch, Tokenizer, TranslationDataset
from keras_bahdanau.callbacks import AlignmentImages, TensorBoardScalars


def events(folder):
    """Return the events of the only file in a folder, after checking their checksums."""
    (path,) = folder.iterdir()
    assert ".tfevents." in path.name  # TensorBoard looks for this name
    data, parsed = path.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        message = data[12 : 12 + length]
        checksums = data[8:12] + data[12 + length :][:4]
        assert checksums == struct.pack("<II", masked_crc(data[:8]), masked_crc(message))
        parsed.append(Event.FromString(message))
        data = data[16 + length :]
    return parsed


def masked_crc(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in image_events] == [2, 2, 4, 4]
    values = [event.summary.value[0] for event in image_events]
    assert [value.tag for value in values] == ["alignment/1", "alignment/2"] * 2
    image = values[0].image
    assert image.encoded_image_string.startswith(b"\x89PNG")
    size = struct.unpack(">II", image.encoded_image_string[16:24])
    assert (image.width, image.height) == size


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
    _, event = events(tmp_path)  # which is complete before training ends
    assert event.step == 7
    scalars = {value.tag: value.simple_value for value in event.summary.value}
    assert scalars == {"loss": 1.5, "learning_rate": 0.25}


def test_an_optimizer_with_several_learning_rates_writes_none(tmp_path):
    optimizers = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.25))
    model = dense_model(keras.optimizers.MultiOptimizer(optimizers))
    x, y = keras.ops.ones((2, 2)), keras.ops.ones((2, 1))
    model.fit(x, y, epochs=1, verbose=0, callbacks=[TensorBoardScalars(tmp_path)])
    [event] = events(tmp_path)[1:]
    assert [value.tag for value in event.summary.value] == ["loss"]


def test_two_callbacks_write_to_different_files(tmp_path):
    for _ in range(2):
        TensorBoardScalars(tmp_path / "a").on_train_begin()
    assert len(list((tmp_path / "a").iterdir())) == 2


@pytest.mark.parametrize(
    "name, value",
    [*[("sources", value) for value in ("ab", ["ab", " "], [])], ("every", 0), ("max_length", 0)],
)
def test_invalid_arguments_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        AlignmentImages(tmp_path, **{"sources": ["ab"], name: value})
