"""A stream outlives its ranks; nothing is left behind; exit codes tell a crash from a drain."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest

from cluster import (BIN, Cluster, admin_pb2, admin_pb2_grpc, collect, free_port, inference_pb2, inference_pb2_grpc, worker_pb2,
                     worker_pb2_grpc)

PROMPTS = [[(7 * i + 3 * j) % 500 for j in range(1, 12 + i)] for i in range(8)]
LONG = dict(max_tokens=180, ignore_eos=True, temperature=0.8, seed=11)


def gone(pid):
    """True when no process of this id runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize("victim", [0, 1])
def test_streams_outlive_a_killed_rank(models, victim):
    with Cluster(models(), tp=2) as cluster:
        want = [cluster.generate(p, **LONG).ids for p in PROMPTS]
        before = cluster.pids()
        streams = [cluster.stream(p, **LONG) for p in PROMPTS]
        firsts = [next(s) for s in streams]
        os.kill(before[victim], signal.SIGKILL)
        got = []
        for first, stream in zip(firsts, streams):
            answers, _ = collect([first, *stream])
            got.append(answers[0].ids)
        assert got == want
        after = cluster.pids()
        assert after[victim] != before[victim] and after[1 - victim] == before[1 - victim]
        assert cluster.generate(PROMPTS[0], **LONG).ids == want[0]


def test_a_rank_killed_again_and_again(models):
    with Cluster(models(), tp=2) as cluster:
        want = cluster.generate(PROMPTS[0], **LONG).ids
        for round_number in range(3):
            stream = cluster.stream(PROMPTS[0], **LONG)
            first = next(stream)
            os.kill(cluster.pids()[round_number % 2], signal.SIGKILL)
            answers, _ = collect([first, *stream])
            assert answers[0].ids == want


def test_a_silent_rank_does_not_hold_deadlines_up_and_streams_go_on_when_it_wakes(models):
    options = {**LONG, "max_tokens": 700}
    with Cluster(models(ctx=1024), tp=2) as cluster:
        want = cluster.generate(PROMPTS[0], **options).ids
        victim = cluster.pids()[1]
        stream = cluster.stream(PROMPTS[0], **options)
        first = next(stream)
        os.kill(victim, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(grpc.RpcError) as error:
                cluster.generate(PROMPTS[1], timeout=0.5, **options)
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert time.monotonic() - begin < 1
            wait_until(lambda: not cluster.status().ready, 15, "the loss of the group")
        finally:
            os.kill(victim, signal.SIGCONT)
        answers, _ = collect([first, *stream])
        assert answers[0].ids == want
        assert cluster.status().epoch > 1 and cluster.pids()[1] == victim


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_hangs_is_killed_and_replaced(models, victim):
    with Cluster(models(), "--step-timeout", 1, tp=2) as cluster:
        want = [cluster.generate(p, **LONG).ids for p in PROMPTS]
        before = cluster.pids()
        streams = [cluster.stream(p, **LONG) for p in PROMPTS]
        firsts = [next(s) for s in streams]
        os.kill(before[victim], signal.SIGSTOP)
        got = [collect([first, *stream])[0][0].ids for first, stream in zip(firsts, streams)]
        assert got == want
        after = cluster.pids()
        assert after[victim] != before[victim] and after[1 - victim] == before[1 - victim]
        assert gone(before[victim])
        assert f"rank {victim} hangs: killing process {before[victim]}" in cluster.log


class HandStarted(Cluster):
    """Two ranks and their router without `serve`: nobody replaces what hangs. Leave it as a context manager."""

    def __init__(self, model, *flags):
        name = f"unix-abstract:shoal-test-{os.getpid()}-{time.monotonic_ns()}-"
        self.address, self.admin_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        options = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes = [
            subprocess.Popen([str(BIN / "shoal-worker"), "--model", str(model), "--threads", "1", "--listen", name + rank], **options)
            for rank in "01"]
        self.process = subprocess.Popen(
            [str(BIN / "shoal-router"), "--workers", f"{name}0,{name}1", "--listen", self.address,
             "--admin-listen", self.admin_address, *map(str, flags)], **options)
        self.processes.append(self.process)
        assert self.process.stdout.readline().startswith("READY")
        self.channel = grpc.insecure_channel(self.address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(self.admin_address))

    def __exit__(self, kind, value, trace):
        for process in reversed(self.processes):
            process.terminate()
        assert [process.wait(timeout=20) for process in self.processes] == [0, 0, 0]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_fenced_rank_that_wakes_up_does_no_harm(models, victim):
    with HandStarted(models(), "--step-timeout", 1) as cluster:
        want = [cluster.generate(p, **LONG).ids for p in PROMPTS[:4]]
        before, epoch = cluster.pids(), cluster.status().epoch
        streams = [cluster.stream(p, **LONG) for p in PROMPTS[:4]]
        firsts = [next(s) for s in streams]
        os.kill(before[victim], signal.SIGSTOP)
        try:
            assert cluster.process.stdout.readline() == f"HUNG rank={victim} pid={before[victim]}\n"
            assert not cluster.status().ready
        finally:
            os.kill(before[victim], signal.SIGCONT)
        assert [collect([first, *stream])[0][0].ids for first, stream in zip(firsts, streams)] == want
        assert cluster.pids() == before and cluster.status().epoch > epoch


def test_streams_of_a_rank_that_stays_silent_end_unavailable(models):
    options = {**LONG, "max_tokens": 700}
    with Cluster(models(ctx=1024), "--recovery-timeout", 2, tp=2) as cluster:
        cluster.generate(PROMPTS[0], max_tokens=8)
        victim = cluster.pids()[1]
        stream = cluster.stream(PROMPTS[0], **options)
        next(stream)
        os.kill(victim, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(grpc.RpcError) as error:
                collect(stream)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE and "rank" in error.value.details()
            assert time.monotonic() - begin < 15
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: cluster.status().ready, 15, "the return of the group")
        assert cluster.generate(PROMPTS[0], max_tokens=8, timeout=10).ids


def test_ranks_serve_only_who_has_their_clusters_token(models):
    with Cluster(models(), tp=2) as cluster, Cluster(models()) as other:
        foreign = cluster.token_of(other.pids()[0])
        for worker in cluster.workers():
            assert worker.address.startswith("unix")  # any user of the machine reaches it
            with grpc.insecure_channel(worker.address) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                for metadata in None, foreign:
                    with pytest.raises(grpc.RpcError) as error:
                        stub.AbortGroup(worker_pb2.AbortGroupRequest(), timeout=5, metadata=metadata)
                    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
                    assert "SHOAL_CLUSTER_TOKEN" in error.value.details()
            command = pathlib.Path(f"/proc/{worker.pid}/cmdline").read_text()
            assert cluster.token_of(worker.pid)[0][1] not in command, "every user may read arguments"
        assert len(cluster.inspect()) == 2


def test_sigterm_drains(models):
    options = {**LONG, "max_tokens": 1200}
    with Cluster(models(ctx=2048)) as cluster:
        want = cluster.generate(PROMPTS[0], **options).ids
        streams = [cluster.stream(PROMPTS[0], **options) for _ in range(4)]
        firsts = [next(s) for s in streams]
        cluster.process.send_signal(signal.SIGTERM)

        def is_refused():
            begin = time.monotonic()
            try:
                cluster.generate(PROMPTS[1], timeout=5, max_tokens=1)
                return False
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                assert time.monotonic() - begin < 1
                return True

        wait_until(is_refused, 2, "the refusal of new requests while the streams run")
        results = [collect([f, *s])[0][0].ids for f, s in zip(firsts, streams)]
        assert results == [want] * 4
        assert cluster.process.wait(timeout=20) == 0
        assert is_refused()


def test_a_start_and_an_end_without_trouble_warn_of_nothing(models):
    with Cluster(models(), tp=2) as cluster:
        cluster.generate(PROMPTS[0], max_tokens=4)
    assert re.findall("^[WEF]2.*|.*(?:warning|error).*", cluster.log, re.MULTILINE) == []


def start_serve(model, *flags, prefix=(), **options):
    """A process of `serve` as Cluster has none, and its two addresses."""
    serve = subprocess.Popen([*prefix, str(BIN / "shoalctl"), "serve", str(model), "--listen", "127.0.0.1:0", "--admin-listen",
                              "127.0.0.1:0", *flags], stdout=subprocess.PIPE, text=True, **options)
    ready = serve.stdout.readline()
    return serve, *re.match(r"READY listen=(\S+) admin=(\S+)", ready).groups()


def test_a_log_that_nobody_reads_any_more_is_no_reason_to_die(models):
    read_end, write_end = os.pipe()
    serve, _, admin = start_serve(models(), stderr=write_end)
    os.close(write_end)
    with grpc.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)

        def pid():
            return stub.ListWorkers(admin_pb2.ListWorkersRequest(), timeout=5).workers[0].pid

        before = pid()
        os.close(read_end)
        os.kill(before, signal.SIGKILL)  # of which `serve` and the router have something to say
        wait_until(lambda: pid() != before, 10, "another rank")
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(timeout=20) == 0


def test_clients_leave_operators_descriptors(models):
    serve, address, admin = start_serve(models(), prefix=["prlimit", "--nofile=64:64"], stderr=subprocess.DEVNULL)
    host, port = address.split(":")
    clients = [socket.create_connection((host, int(port)), timeout=5) for _ in range(84)]
    done = subprocess.run([str(BIN / "shoalctl"), "status", "--admin", admin], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    for client in clients:
        client.close()
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(timeout=20) == 0


def test_nohup_is_obeyed_and_a_name_must_be_text(models, tmp_path):
    serve, _, _ = start_serve(models(), prefix=["nohup"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.kill(serve.pid, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        serve.wait(timeout=1)
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(timeout=20) == 0
    odd = os.fsencode(tmp_path) + b"/\xff.gguf"
    os.symlink(os.fsencode(models()), odd)
    done = subprocess.run([os.fsencode(BIN / "shoalctl"), b"serve", odd], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "not UTF-8: give it a --model-name" in done.stderr


def test_nothing_outlives_a_killed_serve(models):
    shm = set(os.listdir("/dev/shm"))
    cluster = Cluster(models(), tp=2)
    pids = cluster.pids()
    os.kill(cluster.process.pid, signal.SIGKILL)
    cluster.process.wait()
    wait_until(lambda: all(gone(pid) for pid in pids), 5, "the end of the ranks")
    assert set(os.listdir("/dev/shm")) <= shm


def test_a_dead_router_is_an_error_exit(models):
    cluster = Cluster(models(), tp=2)
    pids = cluster.pids()
    children = subprocess.run(["pgrep", "-P", str(cluster.process.pid), "shoal-router"], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    assert cluster.process.wait(timeout=10) != 0
    wait_until(lambda: all(gone(pid) for pid in pids), 5, "the end of the ranks")


def test_a_bad_model_file_is_refused_by_name(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    done = subprocess.run([str(BIN / "shoalctl"), "serve", str(bad), "--listen", "127.0.0.1:0", "--admin-listen",
                           "127.0.0.1:0"], capture_output=True, text=True, timeout=20)
    assert done.returncode not in (0, None) and "bad.gguf" in done.stderr


def test_sizes_that_do_not_fit_are_refused_with_the_legal_ones(models):
    with pytest.raises(RuntimeError) as error:
        Cluster(models(heads=6, kv_heads=2, embd=192, ffn=384), tp=8)
    assert "6" in str(error.value) and "legal" in str(error.value).lower()


def test_a_kv_cache_that_does_not_fit_ends_the_start_at_once(models):
    done = subprocess.run([str(BIN / "shoalctl"), "serve", str(models()), "--kv-cache-bytes", "100TB", "--listen", "127.0.0.1:0",
                           "--admin-listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=20)  # not --startup-timeout
    assert done.returncode == 1 and "lower --kv-cache-bytes" in done.stderr


def test_more_threads_than_cores_finish_with_a_warning(models):
    options = dict(max_tokens=100, ignore_eos=True)
    with Cluster(models()) as cluster:
        want = cluster.generate(PROMPTS[0], **options).ids
        assert "warning" not in cluster.log
        begin = time.monotonic()
        cluster.generate(PROMPTS[1], **options)
        alone = time.monotonic() - begin
    with Cluster(models(), threads=4 * os.cpu_count()) as cluster:
        assert cluster.generate(PROMPTS[0], **options).ids == want
        assert f"{4 * os.cpu_count()} threads" in re.search("warning: .*", cluster.log).group()
        begin = time.monotonic()
        cluster.generate(PROMPTS[1], **options)
        # Not 3 times, as it is on an idle machine: this one may be busy with other things.
        assert time.monotonic() - begin < 10 * alone, "threads that wait for each other must not fight for the cores"


def test_ranks_have_as_many_threads_as_they_may_use_cpus(models):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with Cluster(models(), threads=None) as cluster:
            command = pathlib.Path(f"/proc/{cluster.pids()[0]}/cmdline").read_text().split("\0")
            assert cluster.generate(PROMPTS[0], max_tokens=4).ids
    finally:
        os.sched_setaffinity(0, allowed)
    assert command[command.index("--threads") + 1] == "1"


def test_an_idle_cluster_uses_no_cpu(models):
    with Cluster(models(), tp=2, threads=1) as cluster:
        cluster.generate(PROMPTS[0], max_tokens=4)
        pids = cluster.pids()

        def cpu_ticks():
            total = 0
            for pid in pids:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
            return total

        done = threading.Event()
        done.wait(0.3)
        before = cpu_ticks()
        done.wait(2.0)
        assert cpu_ticks() - before <= 4, "more than 40 ms of CPU in 2 idle seconds"


def test_a_model_file_may_be_overwritten_and_truncated_while_it_is_served(models, tmp_path):
    original, other = models(ctx=1024).read_bytes(), models(ctx=1024, seed=2).read_bytes()
    assert len(original) == len(other)
    options = {**LONG, "max_tokens": 900}  # so long that the stream outlives what is done meanwhile
    path = tmp_path / "model.gguf"
    path.write_bytes(original)
    with Cluster(path, tp=2) as cluster:
        want = [cluster.generate(p, **LONG).ids for p in PROMPTS]
        for content in other, b"":
            with open(path, "r+b") as file:
                file.write(content)
                file.truncate(len(content))
            assert [cluster.generate(p, **LONG).ids for p in PROMPTS] == want
            assert cluster.status().ready
        # What a new process would load is not what the others have: it is refused until the file is back.
        whole = cluster.generate(PROMPTS[0], **options).ids
        path.write_bytes(other)
        stream = cluster.stream(PROMPTS[0], **options)
        first = next(stream)
        os.kill(cluster.pids()[1], signal.SIGKILL)
        wait_until(lambda: "fingerprint" in cluster.log, 20, "the refusal of another model")
        path.write_bytes(original)
        os.kill(cluster.pids()[1], signal.SIGKILL)
        answers, _ = collect([first, *stream])
        assert answers[0].ids == whole and cluster.status().epoch > 1
