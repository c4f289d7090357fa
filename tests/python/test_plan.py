"""`shoalctl plan`: what ranks would take is what they take; what does not fit is refused in the same words."""

import json
import subprocess

import pytest

from cluster import BIN, Cluster


def plan(model, *flags):
    return subprocess.run([str(BIN / "shoalctl"), "plan", str(model), *map(str, flags)],
                          capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("options", [dict(), dict(type="Q4_K", embd=512, ffn=1024), dict(arch="qwen3", tied=True)])
def test_ranks_take_what_the_plan_says(models, options):
    model = models(**options)
    flags = ["--kv-cache-bytes", "8MiB", "--kv-cache-dtype", "int8"]
    report = json.loads(plan(model, "--tp", 2, *flags, "-o", "json").stdout)
    with Cluster(model, *flags, tp=2) as cluster:
        assert [r["rank"] for r in report["ranks"]] == [0, 1]
        for planned, worker in zip(report["ranks"], cluster.workers()):
            assert abs(planned["weight_bytes"] - worker.weight_bytes) <= 0.03 * worker.weight_bytes
            assert planned["kv_cache_bytes"] == worker.kv_cache_bytes
        assert report["context_tokens"] == 16 * cluster.status().blocks_total


def test_the_table_says_what_fits_and_what_to_change(models):
    done = plan(models(), "--tp", 2, "--device-memory", "1GiB")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4 and "into 1.00 GiB a rank" in lines[3]
    done = plan(models(), "--kv-cache-bytes", "200KB", "--max-seq-len", 256)
    assert "context of 256 tokens does not fit: raise --kv-cache-bytes" in done.stdout


def test_what_does_not_fit_is_refused_as_serve_refuses_it(models):
    refused = plan(models(), "--kv-cache-bytes", "100TB")
    served = subprocess.run([str(BIN / "shoalctl"), "serve", str(models()), "--kv-cache-bytes", "100TB", "--listen",
                             "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=20)
    assert refused.returncode == served.returncode == 1
    words = refused.stderr.strip().removeprefix("error: rank 0: ").split(" into ")[0]  # then: memory that is free now
    assert words.startswith("a KV cache of") and words in served.stderr
    small = plan(models(), "--tp", 2, "--device-memory", "1MB")
    assert small.returncode == 1 and "the model needs" in small.stderr and "smaller model" in small.stderr


@pytest.mark.parametrize("flags, word", [(["--tp", 9], "--tp"), (["--max-seq-len", 10**6], "--max-seq-len"),
                                         (["--kv-cache-dtype", "f8"], "f8"), (["--device-memory", "2XB"], "--device-memory")])
def test_bad_flags_are_named(models, flags, word):
    done = plan(models(), *flags)
    assert done.returncode in (1, 2) and word in done.stderr and done.stdout == ""
