"""What nobody plans for: ranks, routers, clients and links die, stop and stall at random moments under load.

Each client has exactly one end, with the tokens of an undisturbed run; nothing is left behind. `--full` runs minutes of it.
"""

import itertools
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import pytest

from cluster import (BIN, Cluster, admin_pb2_grpc, collect, free_port, inference_pb2, inference_pb2_grpc, request)
from test_failure import gone, wait_until

PROMPTS = [[(7 * i + 3 * j) % 500 for j in range(1, 12 + 3 * i)] for i in range(8)]
OPTIONS = [dict(max_tokens=150, ignore_eos=True),
           dict(max_tokens=150, ignore_eos=True, temperature=0.8, top_p=0.9, seed=11)]


def expected(model):
    with Cluster(model) as cluster:
        return {(p, o): cluster.generate(PROMPTS[p], **OPTIONS[o]).ids for p in range(8) for o in range(2)}


@pytest.fixture(scope="module")
def model(models):
    return models(layers=5)


@pytest.fixture(scope="module")
def want(model):
    return expected(model)


class Clients:
    """Threads that stream one request after the other until told to stop, and break some off."""

    def __init__(self, address, want, count=16):
        self.address, self.want = address, want
        self.ends = {"whole": 0, "broken off": 0, "given up": 0}
        self.wrong = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        rng = random.Random(number)
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            caller = Cluster.__new__(Cluster)
            caller.stub = inference_pb2_grpc.InferenceServiceStub(channel)
            while not self._stop.is_set():
                key = rng.randrange(8), rng.randrange(2)
                self._count(self._stream(caller, key, rng))

    def _stream(self, caller, key, rng):
        stream = caller.stream(PROMPTS[key[0]], **OPTIONS[key[1]])
        messages_left = rng.randrange(1, 40) if rng.random() < 0.2 else None
        ids = []
        try:
            for message in stream:
                ids += [token for delta in message.deltas for token in delta.token_ids]
                if ids != self.want[key][:len(ids)]:
                    return f"{key}: {len(ids)} tokens, {ids} are not {self.want[key]}"
                if messages_left is not None and (messages_left := messages_left - 1) == 0:
                    stream.cancel()
                    return "broken off"
        except grpc.RpcError as error:
            # Whoever is there at three losses in a row, the last one alone, is taken for their cause.
            if error.code() == grpc.StatusCode.INTERNAL and "three times in a row" in error.details():
                return "given up"
            return f"{key}: {error.code()} {error.details()}"
        return "whole" if ids == self.want[key] else f"{key}: ends after {len(ids)} tokens"

    def _count(self, end):
        with self._lock:
            if end in self.ends:
                self.ends[end] += 1
            else:
                self.wrong.append(end)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
            assert kind or not thread.is_alive(), "a stream has no end"


def send(pid, number):
    """Whoever it is for may have been replaced meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill(cluster, rng):
    send(rng.choice(cluster.pids()), signal.SIGKILL)


def kill_all(cluster, rng):
    for pid in cluster.pids():
        send(pid, signal.SIGKILL)


def stop_for_a_moment(cluster, rng):
    pid = rng.choice(cluster.pids())
    send(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.01, 0.4))
    send(pid, signal.SIGCONT)


def stop_for_good(cluster, rng):
    send(rng.choice(cluster.pids()), signal.SIGSTOP)


def slow_start(cluster, rng):
    """A rank dies, and the one that takes its place comes up slowly, as from a slow disk."""
    rank = rng.randrange(len(cluster.pids()))
    old = cluster.pids()[rank]
    send(old, signal.SIGKILL)

    def successors():
        children = pathlib.Path(f"/proc/{cluster.process.pid}/task/{cluster.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if not gone(pid) and int(pid) != old
                and f"rank-{rank}\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()]

    wait_until(lambda: gone(old) and successors(), 10, "another rank")
    for pid in successors():
        send(pid, signal.SIGSTOP)
        time.sleep(rng.uniform(0.2, 0.6))
        send(pid, signal.SIGCONT)


FAULTS = [kill, kill, kill_all, stop_for_a_moment, stop_for_good, slow_start]


@pytest.mark.parametrize("layout", [dict(tp=2), dict(pp=2), dict(tp=2, pp=2)], ids=["tp=2", "pp=2", "tp=2 pp=2"])
def test_streams_outlive_anything_that_befalls_ranks(model, want, layout, request):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    seconds = 60 if request.config.getoption("--full") else 6
    shared = sorted(os.listdir("/dev/shm"))
    with Cluster(model, "--step-timeout", 0.5, "--recovery-timeout", 60, **layout) as cluster:
        with Clients(cluster.address, want) as clients:
            end = time.monotonic() + seconds
            faults = []
            while time.monotonic() < end:
                wait_until(lambda: cluster.status().ready and all(cluster.pids()), 60, "the group")
                time.sleep(rng.uniform(0, 0.8))
                faults.append(rng.choice(FAULTS))
                faults[-1](cluster, rng)
            wait_until(lambda: cluster.status().ready, 60, "the group")
        told = seed, [fault.__name__ for fault in faults], clients.ends
        print(told)
        assert not clients.wrong, (told, clients.wrong[:3])
        assert clients.ends["whole"] > 10 and clients.ends["given up"] <= 0.05 * clients.ends["whole"] + 2, told
        wait_until(lambda: cluster.status().running_requests == 0, 5, "the end of all requests")
        status = cluster.status()
        assert status.running_requests == 0 and status.blocks_held == 0
        assert status.blocks_free + status.blocks_cached == status.blocks_total
        pids = cluster.pids()
    assert all(gone(pid) for pid in pids)
    assert f"@shoal-{cluster.process.pid}-" not in pathlib.Path("/proc/net/unix").read_text()
    assert sorted(os.listdir("/dev/shm")) == shared


# --- Routers ------------------------------------------------------------------------------------------


class Ranks:
    """Two ranks that the test started, for routers that come and go."""

    def __init__(self, model, *flags, addresses=None):
        name = f"unix-abstract:shoal-chaos-{os.getpid()}-{time.monotonic_ns()}-"
        self.addresses = addresses or [name + rank for rank in "01"]
        self.processes = [
            subprocess.Popen([str(BIN / "shoal-worker"), "--model", str(model), "--threads", "1", "--listen", address],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for address in self.addresses]
        for process in self.processes:
            assert process.stdout.readline().startswith("READY")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for process in self.processes:
            process.terminate()
        assert [process.wait(timeout=20) for process in self.processes] == [0, 0]


class Router(Cluster):
    """A router of ranks that it did not start."""

    def __init__(self, addresses, *flags, address=None, wait=True):
        self.address = address or f"127.0.0.1:{free_port()}"
        self.admin_address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [str(BIN / "shoal-router"), "--workers", ",".join(addresses), "--listen", self.address, "--admin-listen",
             self.admin_address, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if wait:
            assert self.process.stdout.readline().startswith("READY")
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(self.address, options=options)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(self.admin_address, options=options))


def tokens_until_it_breaks(stream):
    ids = []
    try:
        for message in stream:
            ids += [token for delta in message.deltas for token in delta.token_ids]
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
    return ids


@pytest.mark.parametrize("pp", [1, 2])
def test_streams_go_on_at_the_next_router(model, want, pp):
    """A client has the prompt, its options and the tokens so far: any router continues with the same ones."""
    requests = [(p, o) for p in range(8) for o in range(2)]
    with Ranks(model) as ranks:
        so_far = {key: [] for key in requests}
        for generation in range(3):
            router = Router(ranks.addresses, "--pp", pp)
            streams = {key: router.stream(PROMPTS[key[0]], generated_token_ids=so_far[key], **OPTIONS[key[1]])
                       for key in requests if len(so_far[key]) < len(want[key])}
            assert streams
            if generation < 2:
                first = next(iter(streams.values()))
                message = next(first)
                so_far[next(iter(streams))] += [t for delta in message.deltas for t in delta.token_ids]
                time.sleep(0.1)
                router.process.kill()
                router.process.wait()
            for key, stream in streams.items():
                so_far[key] += tokens_until_it_breaks(stream)
            if generation == 2:
                assert router.status().epoch >= 3
                router.__exit__(None, None, None)
        assert so_far == want


def test_two_routers_do_not_own_one_group(model, want):
    with Ranks(model) as ranks, Router(ranks.addresses) as owner:
        streams = [owner.stream(PROMPTS[p], **OPTIONS[1]) for p in range(8)]
        firsts = [next(stream) for stream in streams]
        intruder = Router(ranks.addresses, "--startup-timeout", 2, wait=False)
        assert intruder.process.wait(timeout=20) == 1
        wait_until(lambda: "the rank is owned by router-" in intruder.log, 5, "the reason")
        assert [collect([first, *stream])[0][0].ids for first, stream in zip(firsts, streams)] == \
            [want[p, 1] for p in range(8)]
        assert owner.status().epoch == 1, "it did not even notice"
        # Only one that says so takes the ranks; what the old owner still sends does no harm.
        stream = owner.stream(PROMPTS[0], **OPTIONS[0])
        next(stream)
        with Router(ranks.addresses, "--take-over") as successor:
            assert successor.generate(PROMPTS[1], **OPTIONS[1]).ids == want[1, 1]
            wait_until(lambda: not owner.status().ready, 5, "the loss of the group")
            assert successor.generate(PROMPTS[2], **OPTIONS[0]).ids == want[2, 0]
        # With the successor gone the old owner has them again, and its stream goes on.
        assert collect(stream)[0][0].finish_reason == "length"


# --- Links --------------------------------------------------------------------------------------------


class Link:
    """Forwards connections to a port, until they are cut or fall silent."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs = []
        self._silent = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for end in near, far:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs.append((near, far))
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near, far):
        try:
            while True:
                for readable in select.select([near, far], [], [])[0]:
                    data = readable.recv(65536)
                    while self._silent.is_set():
                        time.sleep(0.01)
                    if not data:
                        raise OSError
                    (far if readable is near else near).sendall(data)
        except (OSError, ValueError):
            near.close()
            far.close()

    def cut(self):
        for pair in self._pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._pairs.clear()

    def fall_silent(self, seconds):
        self._silent.set()
        time.sleep(seconds)
        self._silent.clear()

    def close(self):
        self.cut()
        self._listener.close()


@pytest.mark.parametrize("fault", ["cut", "silent"])
@pytest.mark.parametrize("pp", [1, 2])
def test_streams_outlive_a_link_to_a_rank(model, want, fault, pp):
    ports = [free_port(), free_port()]
    with Ranks(model, addresses=[f"127.0.0.1:{port}" for port in ports]) as ranks:
        link = Link(ports[1])
        with Router([ranks.addresses[0], f"127.0.0.1:{link.port}"], "--pp", pp, "--step-timeout", 0.5) as router:
            warm = [router.generate(PROMPTS[p], **OPTIONS[1]).ids for p in range(3)]  # first steps have a minute
            assert warm == [want[p, 1] for p in range(3)]
            streams = [router.stream(PROMPTS[p], **OPTIONS[1]) for p in range(8)]
            firsts = [next(stream) for stream in streams]
            if fault == "cut":
                link.cut()
            else:
                link.fall_silent(3)
            assert [collect([first, *stream])[0][0].ids for first, stream in zip(firsts, streams)] == \
                [want[p, 1] for p in range(8)]
            assert router.status().epoch > 1
        link.close()


# --- The machine --------------------------------------------------------------------------------------


def test_a_full_dev_shm_is_nobodys_trouble(model, want):
    """What ranks share is memory without a name; /dev/shm may be full or not there."""
    fill = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "sh", "-c", fill], capture_output=True).returncode != 0:
        pytest.skip("needs to mount a file system of its own")
    script = f'{fill} && exec {shutil.which("env")} "$@"'
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster import Cluster
with Cluster(sys.argv[2], tp=2, pp=2) as cluster:
    print(cluster.generate(eval(sys.argv[3]), **eval(sys.argv[4])).ids)
"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", program,
                           str(pathlib.Path(__file__).parent), str(model), repr(PROMPTS[0]), repr(OPTIONS[1])],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == want[0, 1]


def test_the_documented_way_to_go_on_at_another_router(model, want):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "failure.md").read_text()
    names = dict(itertools=itertools, time=time, grpc=grpc, inference_pb2=inference_pb2)
    exec(text.split("```python\n")[1].split("```")[0], names)
    with Ranks(model) as ranks:
        first = Router(ranks.addresses)
        call = threading.Timer(0.15, first.process.kill)
        address = f"127.0.0.1:{free_port()}"
        second = threading.Thread(target=lambda: (first.process.wait(), routers.append(Router(ranks.addresses, address=address))))
        routers = []
        second.start()
        with grpc.insecure_channel(address) as channel:
            call.start()
            stubs = [first.stub, inference_pb2_grpc.InferenceServiceStub(channel)]
            assert names["stream_to_the_end"](stubs, request(PROMPTS[1], **OPTIONS[1])) == want[1, 1]
            # Again, in case that the first one did it all before it died.
            second.join()
            half = want[1, 1][:75]
            assert names["stream_to_the_end"](stubs, request(PROMPTS[1], **OPTIONS[1]), half) == want[1, 1]
            response = routers[0].generate(PROMPTS[1], generated_token_ids=half, **OPTIONS[1]).response
            assert response.usage.completion_tokens == 150
        routers[0].__exit__(None, None, None)
