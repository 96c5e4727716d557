"""What the kernel keeps for a box beside its processes' own memory: counted, limited, or refused."""

import ctypes
import json
import platform
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest
from deadlines import deadline_s

from grading.boxes.sandbox import Bubblewrap, Limits
from grading.boxes.sandbox.boxed_program import BoxedProgram, BoxedProgramError
from grading.boxes.sandbox.kernel_buffers import buffered_bytes
from grading.boxes.sandbox.limit_watchdog import FIRST_TO_GO, keep_first_to_go
from grading.boxes.sandbox.process_tree_memory import MOST_MAPPINGS, nameless_bytes

MIB = 1 << 20
LIMITS = Limits(memory_bytes=1 << 30)
bubblewrap = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")
known = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the calls have other numbers here")
CALLS = {"x86_64": (248, 250, 68, 425), "aarch64": (217, 219, 186, 425)}.get(platform.machine())
HOLDS = {"x86_64": (29, 278, 447, 294, 319, 40, 275, 317), "aarch64": (194, 75, 447, 26, 279, 71, 76, 277)}
HOLDS = HOLDS.get(platform.machine(), (0,) * 8)
USER, SESSION, SEARCH = b"user", -3, 10
FULL_PIPES = """
import fcntl, os, socket, sys
kept = []
for _ in range(4):
    end, begin = os.pipe()
    kept += [end, begin]
    fcntl.fcntl(begin, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(begin, bytes(1 << 20))
pair = socket.socketpair()
pair[0].send(bytes(100_000))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
other = server.accept()[0]
client.send(bytes(50_000))
print("full", flush=True)
sys.stdin.read()
"""


class Python(BoxedProgram):
    """Runs some code in place of a module."""

    def __init__(self, source: str, box: Bubblewrap) -> None:
        self._source = source
        super().__init__("unused", box=box)

    def _start(self) -> None:
        self._command = [sys.executable, "-c", self._source]
        super()._start()


def started(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("boxed", [False, pytest.param(True, marks=bubblewrap)])
def test_what_waits_in_pipes_and_sockets_is_counted(boxed):
    command = [sys.executable, "-c", FULL_PIPES]
    with started(Bubblewrap(LIMITS).command(command) if boxed else command) as process:
        assert process.stdout.readline() == "full\n"
        everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        inside, on_its_way = buffered_bytes(everybody)
        assert 4 * MIB + 100_000 <= inside < 5 * MIB
        assert 50_000 <= on_its_way <= 100_000, "some of it twice, on its way"
        process.stdin.close()


def test_processes_that_are_gone_have_nothing_in_their_pipes():
    with subprocess.Popen(["true"]) as process:
        gone = psutil.Process(process.pid)
    assert buffered_bytes([gone]) == (0, 0)


@bubblewrap
@known
def test_keys_and_messages_of_the_kernel_are_refused():
    libc, (add, control, messages, ring) = ctypes.CDLL(None), CALLS
    key = libc.syscall(add, USER, b"shardlab-test", b"secret", 6, SESSION)
    if key < 0:
        pytest.skip("this kernel has no keys")
    source = f"""if True:
        import ctypes, json, multiprocessing
        libc = ctypes.CDLL(None, use_errno=True)
        calls = [({control}, {SEARCH}, {SESSION}, {USER}, b"shardlab-test", 0)]
        calls += [({add}, {USER}, b"left", b"x", 1, {SESSION}), ({messages}, 1, 0o1777), ({ring}, 4, 0)]
        found = [(libc.syscall(*call), ctypes.get_errno()) for call in calls]
        multiprocessing.Lock()
        try:
            keys = open("/proc/keys").read()
        except OSError:
            keys = ""
        print(json.dumps([found, keys]))
        """
    done = subprocess.run(Bubblewrap(LIMITS).command([sys.executable, "-c", source]), capture_output=True, text=True)
    assert json.loads(done.stdout) == [[[-1, 1]] * 4, ""], done.stderr
    assert libc.syscall(control, SEARCH, SESSION, USER, b"left", 0) < 0


@bubblewrap
@known
def test_memory_that_no_process_has_mapped_is_refused():
    """Memory of System V, pages in pipes, secret memory; what watches files, which a user's boxes share; files of
    memory; pages in sockets and pipes; a filter of calls for each thread; sockets with pages, or with large buffers,
    or of unusual families."""
    source = f"""if True:
        import ctypes, json, os, socket
        libc, (end, pipe) = ctypes.CDLL(None, use_errno=True), os.pipe()
        file, (_, to) = os.open("/tmp/x", os.O_RDWR | os.O_CREAT), socket.socketpair()
        os.write(file, b"x" * 8192)
        page = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(1)), 1)
        calls = [({HOLDS[0]}, 0, 1 << 20, 0o1600), ({HOLDS[1]}, pipe, page, 1, 0), ({HOLDS[2]}, 0), ({HOLDS[3]}, 0)]
        calls += [({HOLDS[4]}, b"x", 0), ({HOLDS[5]}, to.fileno(), file, None, 1)]
        calls += [({HOLDS[6]}, file, ctypes.byref(ctypes.c_long(1)), pipe, None, 1, 0), ({HOLDS[7]}, 1, 0, b"")]
        found = [(libc.syscall(*call), ctypes.get_errno()) for call in calls]
        found.append((libc.prctl(22, 2, b"", 0, 0), ctypes.get_errno()))
        for what in (socket.SO_SNDBUF, socket.SO_RCVBUF, 60):
            found.append((libc.setsockopt(to.fileno(), 1, what, b"\\1\\0\\0\\0", 4), ctypes.get_errno()))
        for family in (socket.AF_ALG, socket.AF_VSOCK, socket.AF_PACKET):
            found.append((libc.socket(family, 5, 0), ctypes.get_errno()))
        to.setsockopt(1, socket.SO_KEEPALIVE, 1)
        print(json.dumps([found, libc.prctl(15, b"name", 0, 0, 0)]))
        """
    done = subprocess.run(Bubblewrap(LIMITS).command([sys.executable, "-c", source]), capture_output=True, text=True)
    assert json.loads(done.stdout) == [[[-1, 1]] * 15, 0], done.stderr


@bubblewrap
def test_a_program_that_copies_files_by_a_refused_call_does_without():
    source = "import shutil; open('/tmp/x', 'w').write('words'); shutil.copy('/tmp/x', '/tmp/y'); "
    source += "print(open('/tmp/y').read())"
    done = subprocess.run(Bubblewrap(LIMITS).command([sys.executable, "-c", source]), capture_output=True, text=True)
    assert done.stdout == "words\n", done.stderr


@bubblewrap
@known
@pytest.mark.parametrize(("names", "works"), [(["nvidia0"], True), ([], False)])
def test_files_of_memory_are_for_boxes_with_gpus(names, works, tmp_path):
    """NVIDIA's driver needs them."""
    for name in names:
        (tmp_path / name).touch()
    box = Bubblewrap(LIMITS, dev=tmp_path)
    assert box.memory_files == works
    done = subprocess.run(box.command([sys.executable, "-c", "import os; os.memfd_create('x')"]), capture_output=True)
    assert (done.returncode == 0) == works, done.stderr


@bubblewrap
def test_so_many_mappings_that_nobody_can_look_through_them_end_a_box():
    source = f"""if True:
        import mmap, os, time
        for _ in range(3):
            os.fork()
        kept = [mmap.mmap(-1, 4096) for _ in range({MOST_MAPPINGS} // 4)]
        time.sleep(600)
        """
    with closing(Python(source, Bubblewrap(LIMITS))) as program:
        program.send({}, timeout_s=deadline_s(60))
        with pytest.raises(BoxedProgramError, match=f"more than {MOST_MAPPINGS:,} mappings"):
            program.receive()


def test_looking_at_as_many_mappings_as_may_be_takes_little_time():
    source = "import mmap; kept = [mmap.mmap(-1, 4096) for _ in range(40_000)]; print('made', flush=True); input()"
    with started([sys.executable, "-c", source]) as process:
        assert process.stdout.readline() == "made\n"
        began = time.process_time()
        assert nameless_bytes([psutil.Process(process.pid)]) == 40_000 * 4096
        assert time.process_time() - began < 5
        process.stdin.close()


def test_open_files_are_limited():
    source = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = subprocess.run(LIMITS.command([sys.executable, "-c", source]), capture_output=True, text=True, check=True)
    assert done.stdout == f"({LIMITS.open_files}, {LIMITS.open_files})\n"


def test_who_asks_to_be_spared_is_first_to_go_again():
    with started([sys.executable, "-c", "input()"]) as process:
        keep_first_to_go(process.pid)
        assert open(f"/proc/{process.pid}/oom_score_adj").read() == f"{FIRST_TO_GO}\n"
        process.stdin.close()
