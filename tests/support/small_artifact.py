"""Artifacts without the options of a search, which are exported in half the time."""

from keras_bahdanau_export.exporter import make_exporter
from keras_bahdanau_export.graph.shared_weights import share_weights
from keras_bahdanau_export.graph.writer import write_cuda_graphs, write_onnx
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.trace import score_function, search_function
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.signature import MODEL_FILE, SCORE_FILE, SHORTLIST_FILE


def write_artifact(model, path, search, max_length, shortlist=None, cuda_graphs=False, score=False):
    """Write an artifact whose search has no options, and return its path.

    Args:
        model: A built `Seq2Seq` on the TensorFlow backend.
        path: The folder to create.
        search: The search in the graph.
        max_length: Maximum number of tokens of a hypothesis.
        shortlist: A `Shortlist`, or `None`.
        cuda_graphs: Whether to write the search split at its loop, too.
        score: Whether to write the graph that scores targets, too.
    """
    options = ExportOptions(search=search, max_length=max_length, shortlist=shortlist)
    function, signature = search_function(model, search, max_length, shortlist)
    with publish(path) as folder:
        signatures = {MODEL_FILE: signature}
        write_onnx(function, signature, folder / MODEL_FILE, model.variables)
        if cuda_graphs:
            signatures |= write_cuda_graphs(function, signature, folder, model.variables)
        if score:
            function, signatures[SCORE_FILE] = score_function(model)
            write_onnx(function, signatures[SCORE_FILE], folder / SCORE_FILE, model.variables)
        if shortlist is not None:
            shortlist.save(folder / SHORTLIST_FILE)
        share_weights(folder)
        contents = {name: signature.to_json() for name, signature in signatures.items()}
        write_manifest(folder, {**make_exporter(model, options).describe(), "signatures": contents})
    return path
