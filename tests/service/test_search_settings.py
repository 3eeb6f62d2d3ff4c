"""Every setting of `SearchSettings` can be passed to a graph, a call, a request and a command."""

import dataclasses

import pytest

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime import SearchOptions
from keras_bahdanau_runtime.search_settings import SearchSettings
from keras_bahdanau_runtime.service.models import PARAMETERS
from keras_bahdanau_runtime.service.schemas import TranslateRequest
from keras_bahdanau_runtime.signature import OPTIONS

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
def test_a_value_outside_of_its_range_is_refused_by_its_name(name):
    limits = SETTINGS[name]
    for value in (limits.low - 1, limits.high * 2 + 1, "3", True, float("nan")):
        with pytest.raises(
            ValueError, match=f"`{name}` must be {limits.noun} of at least"
        ) as caught:
            SearchOptions(**{name: value}).check_values()
        assert caught.value.name == name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_request_has_a_field_with_the_type_and_range_of_a_setting(name):
    schema = TranslateRequest.model_json_schema()["properties"][name]
    limits = SETTINGS[name]
    kind = "integer" if limits.kind is int else "number"
    assert schema["anyOf"] == [{"type": kind}, {"type": "null"}]
    assert (schema["minimum"], schema["maximum"]) == (limits.low, limits.high)
    body = TranslateRequest.model_validate({"text": "a", name: limits.kind(limits.low)})
    assert body.options.values() == {name: limits.low}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_a_flag_and_a_parameter_of_the_inference_protocol(name):
    flag = f"--{name.replace('_', '-')}"
    assert flag in FLAGS["translate"] and flag in FLAGS["evaluate"]
    assert name in PARAMETERS
