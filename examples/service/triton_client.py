"""Calls `keras-bahdanau serve artifact` with Triton's own client, over HTTP and gRPC.

pip install "tritonclient[http,grpc]"
python examples/service/triton_client.py MODEL "a man on a bike" [localhost:8000 localhost:8001]
"""

import json
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http


def translate(library, client, model, texts, **options):
    """Texts in, translations and their alignments out, whichever client it is."""
    given = library.InferInput("text", [len(texts)], "BYTES")
    given.set_data_from_numpy(np.array([text.encode("utf-8") for text in texts], object))
    wanted = [
        library.InferRequestedOutput(name, **options)
        for name in ("translation", "score", "alignment")
    ]
    found = client.infer(model, [given], outputs=wanted)
    # The client gives str from JSON, and bytes otherwise.
    translations = [
        text if isinstance(text, str) else text.decode("utf-8")
        for text in found.as_numpy("translation")
    ]
    alignments = [np.array(json.loads(text)) for text in found.as_numpy("alignment")]
    return list(zip(translations, found.as_numpy("score"), alignments, strict=True))


def main(model, text, http="localhost:8000", grpc="localhost:8001"):
    web = tritonclient.http.InferenceServerClient(http)
    assert web.is_server_live() and web.is_model_ready(model)
    print("server:", web.get_server_metadata()["name"])
    print("models:", [one["name"] for one in web.get_model_repository_index()])
    for binary in (False, True):
        [(found, score, _)] = translate(tritonclient.http, web, model, [text], binary_data=binary)
        print(f"HTTP, {'binary' if binary else 'JSON'}: {found} ({score:.2f})")
    channel = tritonclient.grpc.InferenceServerClient(grpc)
    assert channel.is_server_ready() and channel.is_model_ready(model)
    [(found, score, alignment)] = translate(tritonclient.grpc, channel, model, [text])
    print(f"gRPC: {found} ({score:.2f}); alignment of shape {alignment.shape}")
    try:
        channel.infer("no such model", [])
    except tritonclient.grpc.InferenceServerException as error:
        print("an error:", error.message())


if __name__ == "__main__":
    main(*sys.argv[1:])
