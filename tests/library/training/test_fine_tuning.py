"""Runs that start with the weights of another run."""

import dataclasses
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, BidirectionalEncoder, Seq2Seq, train
from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau.layers.dtype_policies import replace_policies
from keras_bahdanau.models.saved_models import check_finite_weights
from keras_bahdanau.training import TrainingOptions, average_checkpoints
from keras_bahdanau.training.initial import InitialModel
from keras_bahdanau.training.run import build, load_best
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

# The run of an earlier version: an RNNSearch of 10 units and 290 ids.
RUN = Path(__file__).resolve().parents[2] / "files" / "run"
TOKENIZER = InitialModel.read(RUN).tokenizer


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with 12 pairs, in one file of sources and one of targets, and a corpus to mix."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "en").write_text("".join(f"red cat {n}\n" for n in range(12)))
    (folder / "de").write_text("".join(f"cat red {n}\n" for n in range(12)))
    prepare([folder / "de"], [folder / "en"], folder / "corpus", TOKENIZER)
    return folder


@pytest.fixture
def options(texts):
    def options(**values):
        files = {"validation_source": texts / "en", "validation_target": texts / "de"}
        if "source" not in values:
            files |= {"source": texts / "en", "target": texts / "de"}
        sizes = {"init": RUN, "batch_size": 4, "max_length": 16, "learning_rate": 4e-3}
        sizes |= {"label_smoothing": 0.1, "ema": 0.0}
        return TrainingOptions(**sizes | files | values)

    return options


def weights_of(layer):
    return [keras.ops.convert_to_numpy(weight) for weight in layer.weights]


def is_equal(layer, other):
    pairs = zip(weights_of(layer), weights_of(other), strict=True)
    return all((weight == expected).all() for weight, expected in pairs)


@pytest.fixture(scope="module")
def initial():
    return keras.saving.load_model(RUN / "best.keras")


@pytest.fixture(scope="module")
def adapted(texts, tmp_path_factory):
    """The options of a finished run, and its folder."""
    chosen = TrainingOptions(
        texts / "en", texts / "de", validation_source=texts / "en", validation_target=texts / "de",
        init=RUN, freeze=("encoder", "embeddings"), mix=f"{texts / 'corpus'}=0.5",
        batch_size=4, epochs=2, max_length=16, learning_rate=4e-3, best_by="bleu", patience=0,
        label_smoothing=0.1, ema=0.0, average=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(chosen, folder, verbose=False)
    return chosen, folder


def test_the_model_has_the_weights_of_init_and_a_new_optimizer(options, initial):
    model = build(options(learning_rate=0.3, schedule="constant"), TOKENIZER, updates=7, warmup=0)
    assert is_equal(model, initial)
    assert (model.units, model.tokenizer) == (10, TOKENIZER)
    assert int(model.optimizer.iterations) == 0
    assert float(model.optimizer.learning_rate) == pytest.approx(0.3)


def test_only_parts_that_are_not_frozen_are_trained(adapted, initial):
    _, folder = adapted
    model = keras.saving.load_model(folder / "last.keras")
    for frozen in (model.encoder, model.source_embedding, model.target_embedding):
        assert is_equal(frozen, getattr(initial, frozen.name))
    assert not is_equal(model.decoder, initial.decoder)
    assert not is_equal(model.bridge, initial.bridge)


def test_a_run_resumes_without_the_run_that_it_started_with(adapted, options, tmp_path):
    chosen, folder = adapted
    shutil.copytree(RUN, tmp_path / "init")
    shutil.copytree(chosen.mixed[0][0], tmp_path / "init" / "corpus")
    mix = f"{tmp_path / 'init' / 'corpus'}=0.5"
    chosen = dataclasses.replace(chosen, init=tmp_path / "init", mix=(mix,))

    def interrupt(epoch, logs):
        if epoch == 1:
            raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_epoch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "run", callbacks=[stop], verbose=False)
    shutil.rmtree(tmp_path / "init")
    train(chosen, tmp_path / "run", resume=True, verbose=False)
    resumed, whole = (
        keras.saving.load_model(path / "last.keras") for path in (tmp_path / "run", folder)
    )
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if keras.config.backend() == "torch" else {"rtol": 0}
    for weight, expected in zip(weights_of(resumed), weights_of(whole), strict=True):
        np.testing.assert_allclose(weight, expected, **tolerance)


def test_a_run_is_not_resumed_with_a_changed_mix(adapted, texts, tmp_path):
    chosen, folder = adapted
    shutil.copytree(folder, tmp_path / "run")
    prepare([texts / "en"], [texts / "en"], tmp_path / "corpus", TOKENIZER)
    manifest = texts / "corpus" / "manifest.json"
    before = manifest.read_bytes()
    manifest.write_bytes((tmp_path / "corpus" / "manifest.json").read_bytes())
    try:
        with pytest.raises(ValueError, match=r"the texts that the run was started with.*`mix`"):
            train(chosen, tmp_path / "run", resume=True, verbose=False)
    finally:
        manifest.write_bytes(before)


def test_dropout_rates_that_are_not_given_are_those_of_init(options, tmp_path):
    model = keras.saving.load_model(RUN / "best.keras")
    config = {**model.get_config(), "dropout": [0.1, 0.2, 0.3], "encoder_dropout": 0.4}
    changed = type(model).from_config(config)
    changed.tokenizer = model.tokenizer
    changed.build()
    changed.save(tmp_path / "model.keras")

    def rates(**values):
        model = build(options(init=tmp_path / "model.keras", **values), TOKENIZER, 1, 0)
        return *model.dropout, model.encoder.dropout

    assert rates() == (0.1, 0.2, 0.3, 0.4)
    assert rates(annotation_dropout=0.6, encoder_dropout=0.0) == (0.1, 0.6, 0.3, 0.0)
    assert rates(dropout=0.5) == (0.5, 0.5, 0.5, 0.4)


def test_a_frozen_part_of_init_is_trained_unless_it_is_frozen_again(options, adapted):
    _, folder = adapted
    assert all(layer.trainable for layer in build(options(init=folder), TOKENIZER, 1, 0).layers)


def save(model, path, tokenizer=TOKENIZER):
    model.build()
    model.tokenizer = tokenizer
    model.save(path)
    return path


def own_model(units=5, ids=290):
    """A `Seq2Seq` with layers of the user."""
    decoder = AttentiveDecoder(keras.layers.LSTMCell(units), BahdanauAttention(3))
    return Seq2Seq(ids, ids, embedding_dim=4, encoder=BidirectionalEncoder(units), decoder=decoder)


def test_a_model_with_layers_of_the_user_is_trained_on(options, tmp_path):
    path = save(own_model(), tmp_path / "own.keras")
    best = train(options(init=path, freeze="decoder", epochs=1), tmp_path / "run", verbose=False)
    before, after = keras.saving.load_model(path), keras.saving.load_model(best)
    assert is_equal(after.decoder, before.decoder)
    assert is_equal(after.output_layer, before.output_layer)
    assert not is_equal(after.encoder, before.encoder)


@pytest.mark.parametrize("make", [own_model, lambda: keras.saving.load_model(RUN / "best.keras")])
def test_a_model_of_any_policy_is_trained_on_in_float32(options, tmp_path, make):
    model = make()
    replace_policies(model, "mixed_bfloat16")
    path = save(model, tmp_path / "mixed.keras")
    built = build(options(init=path, dtype_policy="mixed_bfloat16"), TOKENIZER, 1, 0)
    assert is_equal(built, model)
    assert (built.decoder.cell.compute_dtype, built.training_dtype_policy) == (
        "float32", "mixed_bfloat16",
    )  # fmt: skip


def test_all_options_that_contradict_the_architecture_are_listed(options, tmp_path):
    chosen = options(units=12, embedding_dim=6, conditional=True, model="rnnencdec")
    expected = (
        r"left out with `init`.*`model` is 'rnnencdec' instead of 'rnnsearch', "
        "`units` is 12 instead of 10, `conditional` is True instead of False$"
    )
    with pytest.raises(ValueError, match=expected):
        train(chosen, tmp_path / "run")
    own = options(init=save(own_model(), tmp_path / "own.keras"), units=256, embedding_dim=4)
    with pytest.raises(ValueError, match=r"Received: `units` is 256, which Seq2Seq lacks$"):
        train(own, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_model_to_train_on_is_refused(options, tmp_path):
    (tmp_path / "text.keras").write_text("no model")
    save(own_model(), tmp_path / "silent.keras", tokenizer=None)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save(tmp_path / "other.keras")
    for name, message in (
        ("missing", "`init` must be the folder of a training run.*does not exist"),
        ("", "`init` must be the folder of a training run.*has no best.keras"),
        ("text.keras", r"`init` must be .*or the \.keras file.*is not a \.keras file"),
        ("silent.keras", "`init` must have a tokenizer.*a Seq2Seq without one"),
        ("other.keras", "`init` must have a tokenizer.*a Sequential without one"),
    ):
        with pytest.raises(ValueError, match=message):
            train(options(init=tmp_path / name), tmp_path / "run")


def test_weights_of_another_kind_of_model_are_refused(options, tmp_path):
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match=r"`init` must be a Seq2Seq.*contains a Sequential"):
        build(options(init=tmp_path / "other.keras"), TOKENIZER, 1, 0)
    quantized = keras.saving.load_model(RUN / "best.keras", compile=False)
    quantized.target_embedding.quantize("int8")
    quantized.save(tmp_path / "int8.keras")
    with pytest.raises(ValueError, match=r"weights in floating point.*quantized"):
        build(options(init=tmp_path / "int8.keras"), TOKENIZER, 1, 0)


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_files_with_weights_that_are_not_finite_are_refused(options, tmp_path, value, name):
    model = keras.saving.load_model(RUN / "best.keras", compile=False)
    model.save_weights(tmp_path / "intact.weights.h5")
    weight = model.bridge.weights[0]
    array = np.array(weight)
    array[-1, 0] = value
    weight.assign(array)
    model.save(tmp_path / "best.keras")
    model.save_weights(tmp_path / "damaged.weights.h5")
    message = f"finite numbers. Received: '.*best.keras', which has {name} in the weight .*bridge"
    with pytest.raises(ValueError, match="`init` must be .*" + message):
        build(options(init=tmp_path), TOKENIZER, 1, 0)
    with pytest.raises(ValueError, match="`run` must be .*" + message):
        load_best(tmp_path)
    with pytest.raises(ValueError, match="`paths` must be .*" + message):
        average_checkpoints([tmp_path / "best.keras"], tmp_path / "average.keras")
    with pytest.raises(ValueError, match=f"`filepath` must be .*{name} in the weight .*bridge"):
        model.load_weights(tmp_path / "damaged.weights.h5")
    model.load_weights(tmp_path / "intact.weights.h5")
    check_finite_weights(model, "model")


def test_keras_files_of_strangers_are_read_within_limits(options, tmp_path):
    for name, config, message in (
        ("deep.keras", "[" * 10000, "maximum recursion depth"),
        ("list.keras", "[1]", "config.json is not that of a model"),
        ("text.keras", '{"class_name": "RNNSearch", "config": "units"}', "not that of a model"),
        ("large.keras", " " * (2**26 + 1), "more than 67108864 bytes"),
    ):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", config)
        with pytest.raises(ValueError, match=rf"`init` must be .*not a \.keras file: .*{message}"):
            InitialModel.read(tmp_path / name)
    document = '{"class_name": "RNNSearch", "config": {"units": []}, "module": "m"}'
    with zipfile.ZipFile(tmp_path / "broken.keras", "w") as archive:
        archive.writestr("config.json", document)
        archive.writestr("metadata.json", "{}")
    with pytest.raises(ValueError, match="`init` must be a model that Keras can load"):
        build(options(init=tmp_path / "broken.keras"), TOKENIZER, 1, 0)


def test_a_model_without_a_tokenizer_is_trained_with_one_from_a_file(options, tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    path = save(own_model(), tmp_path / "silent.keras", tokenizer=None)
    chosen = options(init=path, tokenizer=str(tmp_path / "tokenizer.json"), epochs=1)
    best = train(chosen, tmp_path / "run", verbose=False)
    assert keras.saving.load_model(best).tokenizer == TOKENIZER


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(options, tmp_path):
    Tokenizer.train(["red cat"] * 3, ["cat"], 265).save(tmp_path / "tokenizer.json")
    small = save(own_model(ids=262), tmp_path / "small.keras", tokenizer=None)
    for init, message in (
        (small, "`tokenizer` must have at most 262 source ids.*one with 26[3-5]"),
        (RUN, "`tokenizer` must be left out with `init`, or be the tokenizer of"),
    ):
        with pytest.raises(ValueError, match=message):
            train(options(init=init, tokenizer=str(tmp_path / "tokenizer.json")), tmp_path / "run")


def test_all_corpora_have_the_tokenizer_of_init(options, texts, tmp_path):
    other = prepare([texts / "en"], [texts / "de"], tmp_path / "other", vocabulary_size=270)
    for values, message in (
        ({"source": other}, "`source` must be a corpus with the tokenizer of `init`"),
        ({"mix": f"{other}=0.1"}, "`mix` must have corpora with the tokenizer of the run"),
        ({"init": None, "mix": f"{other}=0.1"}, "`mix` must be left out for text files whose"),
        ({"mix": f"{tmp_path}=0.1"}, "`mix` must have corpora that `prepare` has finished"),
    ):
        with pytest.raises(ValueError, match=message):
            train(options(**values), tmp_path / "run")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"freeze": "bridge"}, "`freeze` must be one or several of 'encoder', 'decoder', 'emb"),
        ({"freeze": "encoder", "init": None}, "`freeze` must be left out without `init`"),
        ({"freeze": ["decoder", "encoder", "embeddings"]}, "`freeze` must leave a part"),
        ({"mix": "corpus"}, "`mix` must be CORPUS=SHARE, .* Received: 'corpus'"),
        ({"mix": ["a=0.2", "b=1"]}, "`mix` must be CORPUS=SHARE, .* Received: 'b=1'"),
        ({"mix": ["a=0.5", "b=0.5"]}, "`mix` must have shares below 1 in all"),
        ({"mix": 0.5}, "`mix` must be one or several of text. Received: 0.5"),
        ({"vocabulary_size": 290}, "`vocabulary_size` must be left out for `init`"),
        ({"target_embeddings": "a.vec"}, "must be left out with `init`, .*'target'"),
    ],
)
def test_options_of_fine_tuning_out_of_range_are_refused(options, values, message):
    with pytest.raises(ValueError, match=message):
        options(**values)


def test_the_texts_are_encoded_with_the_tokenizer_of_init(adapted):
    chosen, folder = adapted
    assert PreparedCorpus(folder / "corpus").tokenizer == TOKENIZER
    recorded = TrainingOptions.from_file(folder / "options.json")
    assert dataclasses.replace(recorded, dtype_policy=chosen.dtype_policy) == chosen
