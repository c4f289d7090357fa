#!/usr/bin/env python3
"""Checks the include table of docs/architecture.md: which folder may include which.

Usage: check_layers.py [ROOT]. Prints each forbidden include and exits 1 if there is one.
"""

import pathlib
import re
import sys

# Folder -> folders of ours that it may include (itself always), longest prefix first.
ALLOWED = {
    "base": [],
    "kernels": ["base"],
    "parallel": ["base", "kernels"],
    "model/formats": ["base", "kernels"],
    "model/text": ["base"],
    "model": ["base", "kernels", "parallel"],
    "router/control": ["base"],
    "router": ["base", "proto", "model/text"],
    "worker": ["base", "kernels", "parallel", "model", "proto"],
    "cli": ["base", "proto"],
}
# Headers that a folder may not include at all, as regular expressions on the include's name.
FORBIDDEN = {
    "base": r"^(grpc|google/protobuf)",
    "kernels": r"^(grpc|google/protobuf|cuda|nccl|cublas)",
    "parallel": r"^(grpc|google/protobuf|cuda)",
    "model": r"^(grpc|google/protobuf|sys/socket|parallel/(?!(topology|shard|join_tree)\.h$))",
    "router/control": r"^(grpc|google/protobuf|thread$|mutex$|chrono$|random$|condition_variable$"
    r"|future$|atomic$|sys/|unistd|base/thread/)",
}
# One instruction set each: intrinsics, C headers, the op contract and their own folder only. What they
# share with their sister folders is text (*.inc.h) and the plain table.
ISA_FOLDERS = ["kernels/cpu/amx", "kernels/cpu/avx512", "kernels/cpu/avx2", "kernels/cpu/portable"]
ISA_ALLOWED = (r"^(kernels/ops\.h|kernels/cpu/(isa_table|packed_layout)\.h|kernels/cpu/.*\.inc\.h|immintrin\.h|utility|type_traits|[a-z]+\.h"
               r"|c[a-z]+)$")

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')


def folder_of(path, table):
    names = [name for name in table if path == name or path.startswith(name + "/")]
    return max(names, key=len) if names else None


def target_of(include):
    """The folder of ours that an include names, or None for a system header."""
    if re.match(r"^shoal/.*\.pb\.h$", include) or re.match(r"^(grpc/health|google/rpc)/", include):
        return "proto"
    top = include.split("/")[0]
    return include.rsplit("/", 1)[0] if "/" in include and top in {name.split("/")[0] for name in ALLOWED} else None


def faults_of(root, file):
    path = file.relative_to(root).as_posix()
    folder = folder_of(path, ALLOWED)
    isa = next((name for name in ISA_FOLDERS if path.startswith(name + "/")), None)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        include = match.group(1)
        place = f"{path}:{number}: includes {include}"
        if isa and not re.match(ISA_ALLOWED, include) and not include.startswith(isa + "/"):
            yield f"{place}, which files for one instruction set may not (it could share inline code)"
            continue
        for prefix, pattern in FORBIDDEN.items():
            if (path.startswith(prefix + "/")) and re.match(pattern, include):
                yield f"{place}, which {prefix}/ may not"
        target = target_of(include)
        if target is None or folder is None:
            continue
        allowed = [folder] + ALLOWED[folder]
        if not any(target == name or target.startswith(name + "/") for name in allowed):
            yield f"{place}, but {folder}/ may include only {', '.join(allowed)}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    files = [f for top in sorted({name.split("/")[0] for name in ALLOWED}) for f in sorted((root / top).rglob("*"))
             if f.suffix in (".h", ".cc")]
    faults = [fault for file in files for fault in faults_of(root, file)]
    for fault in faults:
        print(fault)
    print(f"layers: {len(files)} files, {len(faults)} faults")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
