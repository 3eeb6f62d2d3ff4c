"""Examples that export the model they have trained."""

from recordings import write_recordings

from examples.speech import recognize, stream


def test_the_speech_example_exports_its_model(tmp_path):
    data = write_recordings(tmp_path / "recordings")
    recognize.main([str(data), "--quick", "--export", "--output", str(tmp_path)])
    assert (tmp_path / "artifact" / "model.onnx").exists()


def test_the_streaming_example_runs_its_exported_graphs(tmp_path):
    data = write_recordings(tmp_path / "recordings")
    results = stream.main([str(data), "--quick", "--export", "--output", str(tmp_path)])
    assert results["numbers, stream"] > 0
    assert (tmp_path / "encoder" / "model.onnx").exists()
    assert (tmp_path / "decoder" / "model.onnx").exists()
