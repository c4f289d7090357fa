#!/usr/bin/env bash
# Makes .venv with the Python packages of the tests (tests/python/requirements.txt) and the Python
# stubs of proto/ in .venv/proto.
set -euo pipefail
cd "$(dirname "$0")/.."

want=$(cat tests/python/requirements.txt proto/shoal/v1/*.proto proto/shoal/worker/v1/*.proto | sha256sum)
if [ "$(cat .venv/shoal.sha256 2>/dev/null)" != "$want" ]; then
  [ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv
  .venv/bin/pip install --disable-pip-version-check -q -r tests/python/requirements.txt
  rm -rf .venv/proto
  mkdir -p .venv/proto
  .venv/bin/python -m grpc_tools.protoc -Iproto --python_out=.venv/proto \
    --grpc_python_out=.venv/proto proto/shoal/v1/*.proto proto/shoal/worker/v1/*.proto
  echo "$want" >.venv/shoal.sha256
fi
