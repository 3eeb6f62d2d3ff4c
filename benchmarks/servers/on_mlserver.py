"""A translator behind MLServer, with its adaptive batches."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import Given, given
from mlserver import MLModel, MLServer
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse


class Model(MLModel):
    """Texts to translations and their scores."""

    async def load(self) -> bool:
        settings = Given(*self.settings.parameters.extra["given"])
        self.translator = settings.open()
        self.pool = ThreadPoolExecutor(settings.at_once)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(payload.inputs[0])
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.pool, self._translate, texts)
        translations = [one.text for one in found]
        scores = np.array([[one.score] for one in found], np.float32)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output("translation", translations),
                NumpyCodec.encode_output("score", scores),
            ],
        )

    def _translate(self, texts):
        return self.translator.translate(texts, alignments=False)


async def main():
    settings = given()
    server = MLServer(
        Settings(
            host="127.0.0.1",
            http_port=settings.port,
            grpc_port=settings.port + 1,
            metrics_port=settings.port + 2,
            parallel_workers=settings.processes,
            debug=False,
        )
    )
    model = ModelSettings(
        name="model",
        implementation="on_mlserver.Model",
        max_batch_size=settings.batch_size,
        max_batch_time=settings.max_wait,
        parameters=ModelParameters(extra={"given": list(settings)}),
    )
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
