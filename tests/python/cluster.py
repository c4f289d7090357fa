"""Starts real clusters for tests: shoalctl serve with its router and ranks, and a stock gRPC client."""

import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".venv" / "proto"))

import grpc  # noqa: E402
from shoal.v1 import admin_pb2, admin_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc  # noqa: E402
from shoal.worker.v1 import worker_pb2, worker_pb2_grpc  # noqa: E402

BIN = pathlib.Path(os.environ.get("SHOAL_BUILD_DIR", ROOT / "build" / "release")) / "bin"


def free_port():
    """A port that nobody uses now, for a program that has to be told one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@dataclasses.dataclass
class Answer:
    """One choice of a finished request."""

    text: str
    ids: list
    finish_reason: str
    choice: object
    response: object


class Cluster:
    """A running `shoalctl serve`. Use as a context manager; leaving it checks a clean end."""

    def __init__(self, model, *flags, tp=1, pp=1, threads=1, env=None):
        command = [str(BIN / "shoalctl"), "serve", str(model), "--tp", str(tp), "--pp", str(pp)]
        command += ["--threads", str(threads)] if threads else []
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *map(str, flags)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})}, start_new_session=True)
        self._log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        ready = self.process.stdout.readline()
        match = re.match(r"READY listen=(\S+) admin=(\S+)", ready)
        if not match:
            self.process.wait(timeout=20)
            self._reader.join(timeout=5)
            raise RuntimeError(f"no READY line but {ready!r}; log:\n{self.log}")
        self.address, self.admin_address = match.groups()
        self.channel = grpc.insecure_channel(self.address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(self.admin_address))

    def _read_log(self):
        for line in self.process.stderr:
            self._log.append(line)

    @property
    def log(self):
        return "".join(self._log)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"serve did not end within 20 s of SIGTERM; log:\n{self.log}") from value
        if kind is None:
            assert code == 0, f"serve ended with {code}; log:\n{self.log}"

    def workers(self):
        """The ranks, in rank order."""
        workers = self.admin.ListWorkers(admin_pb2.ListWorkersRequest(), timeout=5).workers
        return sorted(workers, key=lambda worker: worker.rank)

    def pids(self):
        """Process ids of the ranks, in rank order."""
        return [worker.pid for worker in self.workers()]

    def status(self):
        return self.admin.GetClusterStatus(admin_pb2.GetClusterStatusRequest(), timeout=5)

    def block_bytes(self):
        """Of KV that one block takes on the first rank."""
        return self.workers()[0].kv_cache_bytes // self.status().blocks_total

    def end_token_ids(self):
        return list(self.stub.GetModel(inference_pb2.GetModelRequest(), timeout=5).model.end_token_ids)

    @staticmethod
    def token_of(pid):
        """Metadata with the secret that a process shares with its cluster."""
        variables = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
        token = next(v.split("=", 1)[1] for v in variables if v.startswith("SHOAL_CLUSTER_TOKEN="))
        return [("shoal-cluster-token", token)]

    def inspect(self):
        """What each rank itself says of its steps."""
        answers = []
        for worker in self.workers():
            with grpc.insecure_channel(worker.address) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                answers.append(stub.Inspect(worker_pb2.InspectRequest(), timeout=5, metadata=self.token_of(worker.pid)))
        return answers

    # --- Requests -----------------------------------------------------------------------------------

    def generate(self, prompt, timeout=120, **options):
        """Unary. Returns the Answer of the only choice."""
        return self.generate_all(prompt, timeout=timeout, **options)[0]

    def generate_all(self, prompt, timeout=120, **options):
        response = self.stub.Generate(request(prompt, **options), timeout=timeout)
        return [answer(choice, response) for choice in response.choices]

    def start(self, prompt, timeout=120, **options):
        """Unary, in the background: call result() on what comes back, then answers()."""
        return self.stub.Generate.future(request(prompt, **options), timeout=timeout)

    def stream(self, prompt, timeout=120, **options):
        """The iterator of a streaming call."""
        message = inference_pb2.GenerateStreamRequest(request=request(prompt, **options))
        return self.stub.GenerateStream(message, timeout=timeout)


def answer(choice, response=None):
    reason = common_pb2.FinishReason.Name(choice.finish_reason).removeprefix("FINISH_REASON_").lower()
    return Answer(choice.text, list(choice.token_ids), reason, choice, response)


def collect(stream):
    """A stream's deltas joined: {index: Answer}, and all messages."""
    texts, ids, last, messages = {}, {}, {}, []
    for message in stream:
        messages.append(message)
        for delta in message.deltas:
            texts[delta.index] = texts.get(delta.index, "") + delta.text
            ids.setdefault(delta.index, []).extend(delta.token_ids)
            if delta.finish_reason:
                assert delta.index not in last, "two terminal events"
                last[delta.index] = delta
    answers = {}
    for index, delta in last.items():
        answers[index] = answer(delta, messages[-1])
        answers[index].text, answers[index].ids = texts[index], ids[index]
    return answers, messages


SAMPLING = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
STOP = {field.name for field in common_pb2.StopParams.DESCRIPTOR.fields}


def request(prompt, **options):
    """A GenerateRequest. `prompt`: text, a list of ids, or a list of (role, content). Greedy and with ids unless told."""
    message = inference_pb2.GenerateRequest(return_token_ids=options.pop("return_token_ids", True))
    if isinstance(prompt, str):
        message.prompt = prompt
    elif prompt and isinstance(prompt[0], tuple):
        for role, content in prompt:
            message.chat.messages.add(role=role, content=content)
    else:
        message.token_ids.ids.extend(prompt)
    options.setdefault("temperature", 0)
    for name, value in options.items():
        target = message.sampling if name in SAMPLING else message.stop if name in STOP else message
        if isinstance(value, dict):
            getattr(target, name).update(value)
        elif isinstance(value, (list, tuple)):
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)
    return message
