"""Serve a translator with MLServer and its adaptive batching."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mlserver import MLModel, MLServer
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse
from server_options import ServerOptions, parse_options


class Model(MLModel):
    """Translation of texts, with scores."""

    async def load(self) -> bool:
        options = ServerOptions(*self.settings.parameters.extra["options"])
        self.translator = options.open_translator()
        self.pool = ThreadPoolExecutor(options.concurrent_batches)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(payload.inputs[0])
        loop = asyncio.get_running_loop()
        translations = await loop.run_in_executor(self.pool, self._translate, texts)
        scores = np.array([[translation.score] for translation in translations], np.float32)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output(
                    "translation", [translation.text for translation in translations]
                ),
                NumpyCodec.encode_output("score", scores),
            ],
        )

    def _translate(self, texts):
        return self.translator.translate(texts, alignments=False)


async def main():
    options = parse_options()
    server = MLServer(
        Settings(
            host="127.0.0.1",
            http_port=options.port,
            grpc_port=options.port + 1,
            metrics_port=options.port + 2,
            parallel_workers=options.processes,
            debug=False,
        )
    )
    model = ModelSettings(
        name="model",
        implementation="mlserver_server.Model",
        max_batch_size=options.batch_size,
        max_batch_time=options.max_wait,
        parameters=ModelParameters(extra={"options": list(options)}),
    )
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
