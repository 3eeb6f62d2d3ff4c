# An image of the service with one artifact. It needs no checkout: next to this file belong `artifact`,
# `dist` with one wheel of keras_bahdanau, and, if you have it, constraints.txt with exact versions.
# The test suite does not build it.
#
#   pip wheel --no-deps --wheel-dir dist .       # in a clone
#   keras-bahdanau export run artifact
#   docker build -t translate .                  # or --build-arg ARTIFACT=another/folder
#   docker run --read-only --tmpfs /tmp -p 8000:8000 -p 8001:8001 \
#       -v "$PWD/keys:/keys:ro" translate --api-key-file /keys
#
# The stage `service` has no artifact. It serves the one that is mounted at /models/translate:
#
#   docker build --target service -t translate-service .
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/artifact:/models/translate:ro" translate-service
FROM python:3.12-slim AS service

# A file that need not exist has a pattern as its name.
COPY dist/keras_bahdanau-*.whl constraints.tx[t] /wheel/
RUN cd /wheel && touch constraints.txt \
    && pip install --no-cache-dir -c constraints.txt "$(echo keras_bahdanau-*.whl)[serve,cli,tracing]" \
    && rm -r /wheel

RUN useradd --no-create-home --uid 10001 service
USER 10001
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=2s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready')"]
ENTRYPOINT ["keras-bahdanau", "serve", "/models/translate", "--host", "0.0.0.0", "--log-format", "json"]
# Without keys the service only listens on localhost, unless `--no-auth` declares that something else
# controls access.
CMD ["--no-auth"]

FROM service
ARG ARTIFACT=artifact
COPY ${ARTIFACT} /models/translate
