import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import tiny_models  # noqa: E402
from cluster import Cluster  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also what takes many minutes")
    parser.addoption("--same-bits-model", help="run test_same_bits.py on this GGUF file instead of a tiny model")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """models(arch="llama", ...) -> path of a tiny random model; each is written once."""
    folder = tmp_path_factory.mktemp("models")
    written = {}

    def write(**options):
        key = tuple(sorted(options.items()))
        if key not in written:
            written[key] = folder / f"model-{len(written)}.gguf"
            tiny_models.write_model(written[key], tiny_models.Config(**options))
        return written[key]

    return write


@pytest.fixture(scope="session")
def real_model():
    """SmolLM2-135M-Instruct in Q4_1, which scripts/fetch_model.sh fetches."""
    path = os.environ.get("SHOAL_MODEL")
    if not path:
        pytest.skip("SHOAL_MODEL is not set: scripts/fetch_model.sh prints the path")
    return path


@pytest.fixture(scope="module")
def tiny(models):
    """A tiny llama of two ranks, shared by a module's tests."""
    with Cluster(models(), tp=2) as cluster:
        yield cluster
