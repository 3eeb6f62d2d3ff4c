"""Serve a translator with FastAPI, whose thread pool runs each request without batching."""

from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from server_options import parse_options, response_body


class TranslateRequest(BaseModel):
    """The body of a request."""

    text: str


def make_app():
    app, translator = FastAPI(), parse_options().open_translator()

    @app.post("/translate")
    def translate(request: TranslateRequest) -> dict[str, Any]:
        [translation] = translator.translate([request.text], alignments=False)
        return response_body(translation)

    return app


if __name__ == "__main__":
    uvicorn.run(
        "fastapi_server:make_app",
        factory=True,
        port=parse_options().port,
        workers=parse_options().processes,
        access_log=False,
        log_level="warning",
    )
