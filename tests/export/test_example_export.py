"""Examples that export what they have trained."""

from examples.speech import recognise


def test_the_exported_graph_gives_the_same_numbers(tmp_path):
    recognise.main(["--quick", "--export", "--output", str(tmp_path)])
    assert (tmp_path / "artifact" / "model.onnx").exists()
