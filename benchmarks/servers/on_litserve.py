"""A translator behind LitServe, with its batches."""

import litserve
from common import answer, given


class Translate(litserve.LitAPI):
    """Batches of texts to their translations."""

    def setup(self, device):
        self.translator = given().open()

    def decode_request(self, request):
        return request["text"]

    def batch(self, inputs):
        return inputs

    def predict(self, texts):
        return self.translator.translate(texts, alignments=False)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return answer(output)


if __name__ == "__main__":
    settings = given()
    api = Translate(
        max_batch_size=settings.batch_size,
        batch_timeout=settings.max_wait,
        api_path="/translate",
    )
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=settings.processes, fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=settings.port,
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
