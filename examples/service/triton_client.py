"""Call `keras-bahdanau serve artifact` with Triton's client, over HTTP and gRPC.

pip install "tritonclient[http,grpc]"
python examples/service/triton_client.py MODEL "a man on a bike" [localhost:8000 localhost:8001]
"""

import json
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http


def translate(library, client, model, texts, **options):
    """Return (translation, score, alignment) per text, with either client library."""
    text_input = library.InferInput("text", [len(texts)], "BYTES")
    text_input.set_data_from_numpy(np.array([text.encode("utf-8") for text in texts], object))
    outputs = [
        library.InferRequestedOutput(name, **options)
        for name in ("translation", "score", "alignment")
    ]
    response = client.infer(model, [text_input], outputs=outputs)
    # The client returns str from JSON responses and bytes otherwise.
    translations = [
        text if isinstance(text, str) else text.decode("utf-8")
        for text in response.as_numpy("translation")
    ]
    alignments = [np.array(json.loads(text)) for text in response.as_numpy("alignment")]
    return list(zip(translations, response.as_numpy("score"), alignments, strict=True))


def main(model, text, http="localhost:8000", grpc="localhost:8001"):
    http_client = tritonclient.http.InferenceServerClient(http)
    assert http_client.is_server_live() and http_client.is_model_ready(model)
    print("server:", http_client.get_server_metadata()["name"])
    print("models:", [entry["name"] for entry in http_client.get_model_repository_index()])
    for binary in (False, True):
        [(translation, score, _)] = translate(
            tritonclient.http, http_client, model, [text], binary_data=binary
        )
        print(f"HTTP, {'binary' if binary else 'JSON'}: {translation} ({score:.2f})")
    grpc_client = tritonclient.grpc.InferenceServerClient(grpc)
    assert grpc_client.is_server_ready() and grpc_client.is_model_ready(model)
    [(translation, score, alignment)] = translate(tritonclient.grpc, grpc_client, model, [text])
    print(f"gRPC: {translation} ({score:.2f}); alignment of shape {alignment.shape}")
    try:
        grpc_client.infer("no such model", [])
    except tritonclient.grpc.InferenceServerException as error:
        print("an error:", error.message())


if __name__ == "__main__":
    main(*sys.argv[1:])
