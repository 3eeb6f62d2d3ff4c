"""Every setting of `SearchSettings` can be passed to a graph, a call, a request and a command."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime import SearchOptions
from keras_bahdanau_runtime.errors import CorruptArtifactError
from keras_bahdanau_runtime.manifest import parse_manifest
from keras_bahdanau_runtime.request import TranslationRequest
from keras_bahdanau_runtime.search_settings import SearchSettings
from keras_bahdanau_runtime.service.schemas import TranslateRequest
from keras_bahdanau_runtime.signature import FORMAT, OPTIONS

SETTINGS = {
    setting.name: setting.metadata["range"] for setting in dataclasses.fields(SearchSettings)
}
FLAGS = {
    name: {flag for parameter in command.params for flag in parameter.opts}
    for name, command in app.load_commands().items()
}
DTYPES = {int: "int32", float: "float32"}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_call_passes_a_setting_to_the_graph_with_its_dtype(name):
    limits = SETTINGS[name]
    [(key, value)] = SearchOptions(**{name: limits.high}).inputs().items()
    assert (key, str(value.dtype), value.shape) == (name, DTYPES[limits.kind], ())
    assert (OPTIONS[name].dtype, OPTIONS[name].axes) == (DTYPES[limits.kind], ())


@pytest.mark.parametrize("name", SETTINGS)
def test_a_graph_has_the_numbers_of_a_range(name):
    limits = SETTINGS[name]
    low, high = np.array([limits.low, limits.high], DTYPES[limits.kind])
    assert np.isfinite([low, high]).all() and (low == 0) == (limits.low == 0)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_outside_of_its_range_is_refused_by_its_name(name):
    limits = SETTINGS[name]
    message = f"must be {limits.noun} of at least {limits.low} and at most {limits.high}."
    below = [limits.low / 2] if limits.low % 1 else []  # it must not become 0 in float32
    for value in (limits.low - 1, *below, limits.high + 1, 10**400, "3", True, float("nan")):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            SearchOptions(**{name: value}).check_values()
        assert caught.value.name == name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_manifest_has_a_setting_of_its_type(name):
    key, limits = {"beam_size": "size"}.get(name, name), SETTINGS[name]

    def read(value):
        contents = {"format": FORMAT, "format_version": 1, "files": {}, "signatures": {}}
        return parse_manifest(Path("a"), {**contents, "search": {key: value}}).search

    assert getattr(read(limits.high), name) == limits.high
    assert getattr(read(None), name) is None
    for value in ("3", True, *([limits.low - 1, 1.5] if limits.kind is int else [])):
        with pytest.raises(CorruptArtifactError, match=f"in 'search', '{key}' to be"):
            read(value)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_request_has_a_field_with_the_type_and_range_of_a_setting(name):
    schema = TranslateRequest.model_json_schema()["properties"][name]
    limits = SETTINGS[name]
    kind = "integer" if limits.kind is int else "number"
    assert schema["anyOf"] == [{"type": kind}, {"type": "null"}]
    assert (schema["minimum"], schema["maximum"]) == (limits.low, limits.high)


@pytest.mark.parametrize("name", SETTINGS)
def test_json_and_the_inference_protocol_give_the_same_request(name):
    value = SETTINGS[name].kind(SETTINGS[name].low)
    request = TranslateRequest.model_validate({"text": ["a"], name: value}).to_request()
    assert request.options.values() == {name: value}
    for sent in (value, *([str(value)] if isinstance(value, float) else [])):
        assert TranslationRequest.from_inputs({"text": ["a"]}, {name: sent}) == request
    with pytest.raises(ValueError, match=f"`{name}` must be "):
        TranslationRequest.from_inputs({"text": ["a"]}, {name: "much"})


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_a_flag(name):
    flag = f"--{name.replace('_', '-')}"
    assert flag in FLAGS["translate"] and flag in FLAGS["evaluate"]
