#!/bin/sh
# Calls `keras-bahdanau serve artifact` with curl.
#
#   sh examples/service/translate.sh "a man on a bike" [http://localhost:8000]
set -eu
text=$1
url=${2:-http://localhost:8000}

# One text; with quotation marks in it, it needs a writer of JSON such as jq.
curl --fail-with-body --silent "$url/translate" --json "{\"text\": \"$text\"}"
echo

# The same, piece by piece, of an artifact that was exported with --stepwise.
curl --fail-with-body --silent --no-buffer "$url/translate/stream" --json "{\"text\": \"$text\"}"
