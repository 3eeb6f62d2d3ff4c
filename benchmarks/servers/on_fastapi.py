"""A translator in an endpoint of FastAPI's, which runs it in a pool of threads: no batches."""

from typing import Any

import uvicorn
from common import answer, given
from fastapi import FastAPI
from pydantic import BaseModel


class Asked(BaseModel):
    """The body of a request."""

    text: str


def make():
    app, translator = FastAPI(), given().open()

    @app.post("/translate")
    def translate(asked: Asked) -> dict[str, Any]:
        [found] = translator.translate([asked.text], alignments=False)
        return answer(found)

    return app


if __name__ == "__main__":
    uvicorn.run(
        "on_fastapi:make",
        factory=True,
        port=given().port,
        workers=given().processes,
        access_log=False,
        log_level="warning",
    )
