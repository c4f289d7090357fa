#!/usr/bin/env bash
# Fails when a C++ file is not formatted as .clang-format says. Mend with: check_format.sh --fix
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
git ls-files '*.h' '*.cc' | xargs -r clang-format-14 "${mode[@]}"
