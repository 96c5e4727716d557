"""What the kernel counts of a box, and that a report which leaves something out is told from one that does not."""

import subprocess
import sys
import time
from contextlib import closing
from functools import cache
from types import SimpleNamespace

import pytest

from grading.boxes.rank_launcher_client import Watched
from grading.boxes.sandbox import Bubblewrap, Limits, Processes
from grading.boxes.sandbox.boxed_program import BoxedProgram
from grading.boxes.sandbox.memory_and_network_counters import KernelCounters, Seen
from grading.judge import hidden_memory

MIB = 1 << 20
bubblewrap = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=Bubblewrap.obstacle() or "it works")

WITHOUT_MAIN_THREAD = (
    "import ctypes, os, threading; exit = ctypes.CDLL(None).syscall; hold = lambda: (b'1' * N, time.sleep(60));"
    "kept = os.fork() or (threading.Thread(target=hold).start(), exit(60, 0))"
)
HOLDS = {
    "in its own memory": "kept = b'1' * N",
    "in shared memory": "import mmap; kept = mmap.mmap(-1, N); kept[:] = b'1' * N",
    "in a file without a name": "import os; kept = os.memfd_create('kept'); os.write(kept, b'1' * N)",
    "in another process": "import os; kept = os.fork() or (b'1' * N, time.sleep(60))",
    "in a process without its main thread": WITHOUT_MAIN_THREAD,
}


def seen_of(source: str, box: Processes | Bubblewrap) -> Seen:
    """Of a Python that does nothing, then this, and rests."""
    program = (
        f"import sys, time; N = {64 * MIB}; sys.stdin.readline(); {source}\nprint(); sys.stdout.flush(); time.sleep(60)"
    )
    command = box.command([sys.executable, "-c", program])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            with KernelCounters(process.pid, box.limits.scratch_bytes if box.own_namespaces else None) as counters:
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
                time.sleep(1.5)
        finally:
            process.kill()
    return counters.seen


@cache
def seen_of_nothing(box: Processes | Bubblewrap) -> Seen:
    return seen_of("pass", box)


PLAIN, REAL = Processes(None), Bubblewrap(Limits(memory_bytes=400 * MIB))


@pytest.mark.parametrize("where", HOLDS)
def test_memory_is_seen_wherever_it_is(where):
    """Without the main thread 64 MiB more are assumed: nobody can look into such a process's pipes."""
    nothing, held = seen_of_nothing(PLAIN), seen_of(HOLDS[where], PLAIN)
    more = 64 * MIB if HOLDS[where] == WITHOUT_MAIN_THREAD else 0
    assert 60 * MIB < held.peak_bytes - nothing.peak_bytes - more < 150 * MIB
    assert 60 * MIB < held.held_bytes - nothing.held_bytes - more < 80 * MIB


def test_memory_in_pipes_and_sockets_is_seen():
    """These hold 16 MiB, as one user may have 64 MiB in pipes. Without privileges a pipe takes 1 MiB at most."""
    pipes = (
        "import fcntl, os; kept = [os.pipe() for _ in range(16)];"
        "[(fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20), os.write(w, bytes(1 << 20))) for _, w in kept]"
    )
    nothing, held = seen_of_nothing(PLAIN), seen_of(pipes, PLAIN)
    assert 15 * MIB < held.peak_bytes - nothing.peak_bytes < 25 * MIB
    assert 15 * MIB < held.held_bytes - nothing.held_bytes < 25 * MIB


SOCKETS = "import os, socket as S; kept = [{} for _ in range(100)];"
IN_A_BOX = {  # 12 MiB or more each; of datagrams on one machine and of connections more is assumed
    "datagrams of UDP": SOCKETS.format("S.socket(S.AF_INET, S.SOCK_DGRAM)")
    + "[(s.bind(('127.0.0.1', 0)), [s.sendto(b'1' * 50_000, s.getsockname()) for _ in range(3)]) for s in kept]",
    "datagrams": SOCKETS.format("S.socketpair(S.AF_UNIX, S.SOCK_DGRAM)")
    + "[[a.send(b'1' * 15_000) for _ in range(8)] for a, _ in kept]",
    "messages of netlink": SOCKETS.format("S.socket(16, S.SOCK_RAW, 2)")
    + "[(s.bind((0, 0)), [s.sendto(b'1' * 15_000, (s.getsockname()[0], 0)) for _ in range(9)]) for s in kept]",
    "connections of TCP": "import socket as S; server = S.create_server(('127.0.0.1', 0), backlog=300);"
    "kept = [S.create_connection(server.getsockname()) for _ in range(100)]; [s.sendall(b'1' * 130_000) for s in kept]",
    "connections": "import socket as S; server = S.socket(S.AF_UNIX); server.bind('/tmp/s'); server.listen(300);"
    "kept = [S.socket(S.AF_UNIX) for _ in range(100)];"
    "[(s.connect('/tmp/s'), s.send(b'1' * 130_000), s.close()) for s in kept]",
    # a kernel before 6.6 keeps none in memory: there it is a file
    "attributes of a file": "import os; fd = os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)\ntry:\n"
    " [os.setxattr(fd, f'user.{i}', b'1' * 65_000) for i in range(200)]\nexcept OSError: os.write(fd, b'1' * N)\n",
}


@bubblewrap
@pytest.mark.parametrize("what", IN_A_BOX)
def test_memory_that_the_kernel_keeps_for_a_box_is_seen(what):
    seen = seen_of(IN_A_BOX[what], REAL)
    assert seen.held_bytes - seen_of_nothing(REAL).held_bytes > 11 * MIB


def test_memory_in_a_file_that_is_on_its_way_is_seen():
    """Pipes hold no more than this together. In a box that may make no files of memory, only sockets hold more."""
    send = (
        "import os, socket; a, b = socket.socketpair(); fds = os.pipe(); os.write(fds[1], b'1' * 60_000);"
        "socket.send_fds(a, [b'x'], fds); [os.close(fd) for fd in fds]"
    )
    assert seen_of(send, PLAIN).held_bytes - seen_of_nothing(PLAIN).held_bytes > 60 * MIB


def test_what_is_given_back_is_no_longer_held():
    seen = seen_of("kept = b'1' * N; time.sleep(0.3); del kept", Processes(None))
    assert seen.peak_bytes - seen.held_bytes > 60 * MIB


def test_counters_that_could_not_be_read_say_so(monkeypatch):
    monkeypatch.setattr("grading.boxes.sandbox.memory_and_network_counters.held_bytes", lambda _: 1 / 0)
    with pytest.raises(ValueError, match="could not be read any more: ZeroDivisionError"):
        seen_of("pass", Processes(None))


@bubblewrap
def test_temporary_files_of_a_box_are_memory_too():
    write = "open('/dev/shm/kept', 'wb').write(b'1' * N)"
    assert seen_of(write, REAL).held_bytes - seen_of_nothing(REAL).held_bytes > 60 * MIB


@bubblewrap
def test_bytes_over_the_loopback_are_counted():
    send = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
sender = threading.Thread(target=lambda: socket.create_connection(server.getsockname()).sendall(b"1" * N))
sender.start()
connection, n = server.accept()[0], 0
while n < N:
    n += len(connection.recv(1 << 20))
sender.join()"""
    assert 1.0 < seen_of(f"exec({send!r})", REAL).wire_bytes / (64 * MIB) < 1.1
    assert seen_of_nothing(REAL).wire_bytes < MIB


def test_nobody_sees_what_is_on_a_gpu():
    assert Seen() == Seen(None, None, None)


class Ranks:
    """Replies and what was seen of them, look by look: (claimed a rank, seen of all four), in MiB."""

    def __init__(self, mine: list[tuple[float, float]], reference: list[tuple[float, float]]) -> None:
        self.looks = 0
        self._mine, self._reference = mine, reference

    def watch(self, check, drill, look, **arguments) -> Watched:
        self.looks += 1
        return self._watched(*self._mine[look])

    def watch_reference(self, drill, look, **arguments) -> Watched:
        return self._watched(*self._reference[look])

    @staticmethod
    def _watched(claimed, seen) -> Watched:
        seen_bytes = None if seen is None else int(seen * MIB)
        return Watched([{"n": claimed * MIB}] * 4, SimpleNamespace(peak_bytes=seen_bytes))


def hidden(ranks: Ranks) -> float:
    return hidden_memory.hidden_bytes(ranks, "", "", {"peak_bytes": lambda r: r["n"]}, 2 * MIB) / MIB


def test_an_account_that_explains_everything_is_believed_at_once():
    ranks = Ranks(mine=[(10, 1340)], reference=[(25, 1400)])
    assert hidden(ranks) == 0
    assert ranks.looks == 1


def test_what_is_hidden_is_there_at_every_look():
    assert hidden(Ranks(mine=[(10, 1380)] * 3, reference=[(25, 1400)] * 3)) == 10


def test_what_the_machine_does_besides_is_not():
    assert hidden(Ranks(mine=[(10, 1380), (10, 1341)], reference=[(25, 1400)] * 2)) == 0
    assert hidden(Ranks(mine=[(10, 1350)] * 2, reference=[(25, 1380), (25, 1402)])) == 0  # a peak that was missed
    assert hidden(Ranks(mine=[(10, 1352), (10, 1345)], reference=[(25, 1402), (25, 1380)])) == 0


def test_a_claim_below_nothing_explains_nothing():
    assert hidden(Ranks(mine=[(-50, 1340)] * 3, reference=[(25, 1400)] * 3)) > 50


@pytest.mark.parametrize("claimed", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("seen", [1340, None])
def test_a_claim_that_is_no_number_of_bytes_is_refused(claimed, seen):
    with pytest.raises(ValueError, match="the ranks report (nan|-?inf) bytes"):
        hidden(Ranks(mine=[(claimed, seen)] * 3, reference=[(25, seen)] * 3))


def test_where_nobody_sees_anything_the_account_is_believed():
    assert hidden(Ranks(mine=[(10, None)], reference=[(25, None)])) == 0


@bubblewrap
def test_a_boxed_program_has_counters():
    with closing(BoxedProgram("grading.boxes.notebook_runner_in_box", box=REAL)) as program:
        with program.counters() as counters:
            time.sleep(1)
        assert counters.seen.peak_bytes > 5 * MIB
        assert counters.seen.wire_bytes == 0


def test_the_account_of_another_look_explains_nothing():
    """The first one is judged: who owns up only when the system has looked would have its points for the other."""
    assert hidden(Ranks(mine=[(10, 1380), (50, 1380), (50, 1380)], reference=[(25, 1400)] * 3)) == 10


@bubblewrap
def test_a_last_process_that_has_ended_hides_no_file():
    source = "import os; open('/dev/shm/kept', 'wb').write(b'1' * N); os.fork() or os._exit(0); time.sleep(0.5)"
    assert seen_of(source, REAL).held_bytes - seen_of_nothing(REAL).held_bytes > 60 * MIB
