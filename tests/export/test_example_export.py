"""Examples that export the model they have trained."""

from recordings import write_recordings

from examples.speech import recognize


def test_the_speech_example_exports_its_model(tmp_path):
    data = write_recordings(tmp_path / "recordings")
    recognize.main([str(data), "--quick", "--export", "--output", str(tmp_path)])
    assert (tmp_path / "artifact" / "model.onnx").exists()
