#!/bin/sh
# Call `keras-bahdanau serve artifact` with curl.
#
#   sh examples/service/translate.sh "a man on a bike" [http://localhost:8000]
set -eu
text=$1
url=${2:-http://localhost:8000}

# Translate one text. A text with quotation marks must be escaped, for example by jq.
curl --fail-with-body --silent "$url/translate" --json "{\"text\": \"$text\"}"
echo

# Stream the translation. The artifact must have been exported with --stepwise.
curl --fail-with-body --silent --no-buffer "$url/translate/stream" --json "{\"text\": \"$text\"}"
