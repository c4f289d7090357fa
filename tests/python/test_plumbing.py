"""gRPC at its edges: pings, shutdown with open calls, calls around a drain, readiness while ranks load (behaviour
classes K and P)."""

import os
import signal
import subprocess
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster import BIN, Cluster, admin_pb2, free_port, inference_pb2, inference_pb2_grpc, request
from raw_http2 import Connection

SERVING = health_pb2.HealthCheckResponse.SERVING
WATCH = "/grpc.health.v1.Health/Watch"
# Clients and routers ping every 10 s. gRPC forgives three pings that come too soon.
PINGS, PING_INTERVAL_S = 5, 5.2
FULL_PINGS, FULL_PING_INTERVAL_S = 90, 10


@pytest.fixture(scope="module")
def served(models):
    with Cluster(models(), tp=2) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def pinged(served, request):
    """Silent connections that are pinged while the module's tests run: {what: Connection}, and the pinging thread."""
    rank = served.admin.ListWorkers(admin_pb2.ListWorkersRequest()).workers[0].address
    connections = {"idle": Connection(served.address), "silent": Connection(served.address),
                   "admin": Connection(served.admin_address), "rank": Connection(rank)}
    for name in "silent", "rank":
        connections[name].start_call(1, WATCH)
        connections[name].send_message(1, health_pb2.HealthCheckRequest().SerializeToString())
    is_full = request.config.getoption("--full")
    stop = threading.Event()

    def ping_all():
        for i in range(FULL_PINGS if is_full else PINGS):
            if i > 0:
                stop.wait(FULL_PING_INTERVAL_S if is_full else PING_INTERVAL_S)
            for connection in connections.values():
                if connection.is_open():
                    connection.ping()

    thread = threading.Thread(target=ping_all)
    thread.start()
    yield connections, thread
    stop.set()
    thread.join()
    for connection in connections.values():
        connection.__exit__()


def call_readiness(address):
    with grpc.insecure_channel(address) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=5).status


def test_sigterm_ends_with_open_and_half_sent_calls(models):
    cluster = Cluster(models(), "--drain-timeout", 2)
    channel = grpc.insecure_channel(cluster.address)
    watches = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(20)]
    for watch in watches:
        assert next(watch).status == SERVING
    with Connection(cluster.address) as half:
        for stream in range(1, 11, 2):
            half.start_call(stream, "/shoal.v1.InferenceService/Generate")
            half.send_message(stream, request("half of a").SerializeToString(), size=1000)
        half.ping()
        while half.is_open() and not half.pings_answered:  # the server has read all that was sent
            time.sleep(0.01)
        begin = time.monotonic()
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.process.wait(timeout=20) == 0, cluster.log
        assert time.monotonic() - begin < 2 + 2, "more than the drain timeout and 2 s"
    channel.close()


def test_is_ready_only_when_every_rank_can_answer(models):
    """Rank 1 listens but does not answer, as one that loads from a slow disk."""
    name = f"unix-abstract:shoal-test-{os.getpid()}-"
    worker = [str(BIN / "shoal-worker"), "--model", str(models()), "--threads", "1", "--listen"]
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    processes = [subprocess.Popen([*worker, name + str(rank)], **options) for rank in range(2)]
    try:
        for rank in processes:
            assert rank.stdout.readline().startswith("READY")
        processes[1].send_signal(signal.SIGSTOP)
        address = f"127.0.0.1:{free_port()}"
        router = subprocess.Popen([str(BIN / "shoal-router"), "--workers", f"{name}0,{name}1", "--listen", address,
                                   "--admin-listen", "127.0.0.1:0"], **options)
        processes.append(router)
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            live = health.Check(health_pb2.HealthCheckRequest(), timeout=10, wait_for_ready=True)
            assert live.status == SERVING, "a router that waits for its ranks lives"
            readiness = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
            assert next(readiness).status == health_pb2.HealthCheckResponse.NOT_SERVING
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            begin = time.monotonic()
            for call, message in ((stub.Generate, request([1, 2, 3], max_tokens=1)),
                                  (stub.Tokenize, inference_pb2.TokenizeRequest(text="a"))):
                with pytest.raises(grpc.RpcError) as error:
                    call(message, timeout=5)
                assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - begin < 2 and call_readiness(address) != SERVING
            processes[1].send_signal(signal.SIGCONT)
            assert next(readiness).status == SERVING
            assert stub.Generate(request([1, 2, 3], max_tokens=1), timeout=5).choices, "ready is able"
            readiness.cancel()
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(timeout=10)


def test_a_flood_of_pings_is_refused(served):
    with Connection(served.address) as flood:
        for _ in range(8):
            if flood.is_open():
                flood.ping()
        end = time.monotonic() + 5
        while flood.is_open() and time.monotonic() < end:
            time.sleep(0.01)
        assert flood.goaway == "too_many_pings"


def test_pings_of_silent_connections_are_no_abuse(pinged):  # last: they are sent while the others run
    connections, thread = pinged
    thread.join()
    for name, connection in connections.items():
        end = time.monotonic() + 5
        while connection.is_open() and connection.pings_answered < connection.pings_sent and time.monotonic() < end:
            time.sleep(0.01)
        assert connection.is_open(), f"{name}: {connection.goaway}"
        assert connection.pings_answered == connection.pings_sent >= PINGS, name
