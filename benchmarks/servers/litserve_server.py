"""Serve a translator with LitServe and its batching."""

import litserve
from server_options import parse_options, response_body


class Translate(litserve.LitAPI):
    """Translation of batches of texts."""

    def setup(self, device):
        self.translator = parse_options().open_translator()

    def decode_request(self, request):
        return request["text"]

    def batch(self, inputs):
        return inputs

    def predict(self, texts):
        return self.translator.translate(texts, alignments=False)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return response_body(output)


if __name__ == "__main__":
    options = parse_options()
    api = Translate(
        max_batch_size=options.batch_size,
        batch_timeout=options.max_wait,
        api_path="/translate",
    )
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=options.processes, fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
