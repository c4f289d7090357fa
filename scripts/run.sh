#!/usr/bin/env bash
# Installs what is missing, builds Shoal, fetches SmolLM2-135M-Instruct, starts a router with two
# tensor-parallel ranks and answers the prompt; without a prompt it is an interactive chat.
#   scripts/run.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh run
scripts/build.sh release shoal-router shoal-worker shoalctl
model=$(scripts/fetch_model.sh)

bin=build/release/bin
log=$(mktemp "${TMPDIR:-/tmp}/shoal-run.XXXXXX")
serve=
stop() {
  trap '' INT TERM  # the cluster stops by the signal that came here; its end is awaited
  if [ -n "$serve" ]; then
    kill -TERM "$serve" 2>/dev/null || true
    wait "$serve" 2>/dev/null || true
  fi
  rm -f "$log"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The READY line comes through a pipe, so that nothing is polled.
exec 3< <(exec "$bin/shoalctl" serve "$model" --tp 2 --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 2>"$log")
serve=$!
if ! read -r ready <&3; then
  echo "error: the cluster did not start; its log:" >&2
  cat "$log" >&2
  exit 1
fi
address=$(sed -n 's/^READY listen=\([^ ]*\).*/\1/p' <<<"$ready")

if [ $# -gt 0 ]; then
  "$bin/shoalctl" generate --server "$address" --chat --max-tokens 256 -- "$*"
else
  "$bin/shoalctl" chat --server "$address"
fi
