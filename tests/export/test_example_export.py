"""Examples that export the model they have trained."""

from examples.speech import recognize


def test_the_speech_example_exports_its_model(tmp_path):
    recognize.main(["--quick", "--export", "--output", str(tmp_path)])
    assert (tmp_path / "artifact" / "model.onnx").exists()
