"""What a program in a box sees, may write, and may use; and that its end is the end of everything it started."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing

import psutil
import pytest
from course_copy import ROOT
from deadlines import deadline_s
from submissions import running

from grading.boxes.sandbox import Bubblewrap, Limits, Processes, best_box
from grading.boxes.sandbox.boxed_program import BoxedProgram, BoxedProgramError, clean_environment
from grading.boxes.sandbox.limit_watchdog import wait_until_dead
from grading.boxes.sandbox.process_tree_memory import family, is_alive
from grading.boxes.sandbox.scratch import Scratch

SMALL = Limits(memory_bytes=400 << 20, processes=20, scratch_bytes=64 << 20, file_bytes=32 << 20)
bubblewrap = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=Bubblewrap.obstacle() or "it works")
every_box = pytest.mark.parametrize(
    "box", [Processes(SMALL), pytest.param(Bubblewrap(SMALL), marks=bubblewrap)], ids=type
)

HIDDEN = ["solutions", "labs", "README.md", "lib/tests", "grading/samples", "grading/tests", "grading/submitted"]
HIDDEN += ["grading/autograded", "grading/gradebook.db", ".git"]
OF_THE_SYSTEM = ["/etc/shadow", "/etc/passwd", "/var", "/boot", "/home", "/sys", "/run"]


def run(box, source: str, *arguments: str) -> subprocess.CompletedProcess:
    command = box.command([sys.executable, "-c", source, *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=deadline_s(60), check=False)


@bubblewrap
def test_neither_the_course_nor_the_grader_can_be_seen(tmp_path):
    """`run` in the lesser box sees them, so that the question is one."""
    (tmp_path / "another submission").write_text("mine")
    paths = [str(tmp_path / "another submission"), *(str(ROOT / path) for path in HIDDEN)]
    paths += [path for path in OF_THE_SYSTEM if not ROOT.is_relative_to(path)]
    ask = "import os, sys; print(*(p for p in sys.argv[1:] if os.path.exists(p)), sep='\\n')"
    assert run(Bubblewrap(SMALL), ask, *paths).stdout.split("\n") == ["", ""]
    assert str(ROOT / "solutions") in run(Processes(SMALL), ask, *paths).stdout


@bubblewrap
def test_a_program_in_a_box_knows_a_user_name():
    """The box has no list of users, and PyTorch for GPUs asks for the user's name when its compiler is imported."""
    ask, box = "import getpass; print(getpass.getuser())", Bubblewrap(SMALL)
    command, environment = box.command([sys.executable, "-c", ask]), clean_environment("/tmp", own_namespaces=True)
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=deadline_s(60))
    assert answer.stdout == "student\n", answer.stderr


@bubblewrap
def test_nothing_outside_can_be_written():
    source = """if True:
        for line in open("/proc/self/mounts"):
            _, place, _, options, *_ = line.split()
            if "rw" in options.split(","):
                print(place)
        for path in ("/mine", "/dev/mine", "/etc/mine", "/proc/sys/kernel/core_pattern"):
            try:
                open(path, "a").close()
                print("may write to", path)
            except OSError:
                pass
        """
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
    assert set(run(Bubblewrap(SMALL), source).stdout.splitlines()) <= {"/tmp", "/dev/shm", "/proc"} | devices


@bubblewrap
def test_what_is_shared_with_a_box_can_be_read_and_not_written(tmp_path):
    (tmp_path / "given").write_text("words")
    source = """if True:
        import pathlib, sys
        folder = pathlib.Path(sys.argv[1])
        print((folder / "given").read_text())
        for name in ("given", "mine"):
            try:
                (folder / name).write_text("spoilt")
            except OSError as error:
                print(error.strerror)
        """
    command = Bubblewrap(SMALL).command([sys.executable, "-c", source, str(tmp_path)], readable=(tmp_path,))
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s(60), check=True)
    assert done.stdout.splitlines() == ["words", *["Read-only file system"] * 2]
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("given", "words")]


@bubblewrap
def test_other_processes_and_the_network_are_not_there():
    source = """if True:
        import os, socket
        print(len([p for p in os.listdir("/proc") if p.isdigit()]), [name for _, name in socket.if_nameindex()])
        """
    assert run(Bubblewrap(SMALL), source).stdout.split(maxsplit=1) == ["2", "['lo']\n"]  # bwrap itself, and Python


@bubblewrap
def test_a_service_on_this_machine_cannot_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
        port = str(server.getsockname()[1])
        assert "ConnectionRefusedError" in run(Bubblewrap(SMALL), source, port).stderr
        assert run(Processes(SMALL), source, port).returncode == 0


@bubblewrap
def test_temporary_files_have_a_size_and_end_with_the_box():
    source = """if True:
        import os
        for folder in ("/tmp", "/dev/shm"):
            try:
                for i in range(9):
                    open(f"{folder}/{i}", "wb").write(bytes(16 << 20))
            except OSError as error:
                print(folder, i, error.strerror)
        """
    expected = [f"{folder} 4 No space left on device" for folder in ("/tmp", "/dev/shm")]
    assert run(Bubblewrap(SMALL), source).stdout.splitlines() == expected


@every_box
def test_a_file_has_a_largest_size(box):
    source = """if True:
        import signal, tempfile
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with tempfile.TemporaryFile() as file:
            file.write(bytes(40 << 20))
        """
    assert "File too large" in run(box, source).stderr


# What the guard ends


EATS = "import time; eaten = bytearray(1 << 30); time.sleep(60)"
SHARES = "import mmap, time; m = mmap.mmap(-1, 1 << 30); [m.write(bytes(1 << 24)) for _ in range(64)]; time.sleep(60)"
HIDES = "import os, time\nfor _ in range(64): os.write(os.memfd_create('x'), bytes(1 << 24))\ntime.sleep(60)"
LETS_GO = "import mmap, time\nm = mmap.mmap(-1, 1 << 30)\n"
LETS_GO += "for i in range(64): m.write(bytes(1 << 24)); m.madvise(mmap.MADV_DONTNEED)\ntime.sleep(60)"
NAMELESS = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0); "  # a name that is no text
SUBTRACTS = "import ctypes, os, time; ctypes.CDLL(None).prctl(15, b'\\x1cVmSwap: -99999', 0, 0, 0)\n"  # no line
SUBTRACTS += "for _ in range(12):\n if os.fork() == 0: time.sleep(60)\n"
CR = "import ctypes, os\nc = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"  # a mapping, its file let go of
CR += "fd = os.memfd_create('x\\rRss: 99999999 kB'); os.ftruncate(fd, 4096)\n"
CR += "c.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0)); os.close(fd)\n"
LEAVES = "import os, time\nfor _ in range(100):\n if os.fork() == 0: os._exit(0)\n"
LEAVES += "time.sleep(1); print('{}', flush=True); time.sleep(60)"
MULTIPLIES = "import os, time\nfor _ in range(6): os.fork()\ntime.sleep(60)"


class Python(BoxedProgram):
    """`python -c source` in the place of a module of ours."""

    def __init__(self, source: str, box) -> None:
        self._source = source
        super().__init__("unused", box=box)

    def _start(self) -> None:
        self._command = [sys.executable, "-c", self._source]
        super()._start()


@every_box
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (EATS, "of memory, and may hold 0.391 GiB"),
        (SHARES, "of memory, and may hold 0.391 GiB"),
        (HIDES, "of memory, and may hold 0.391 GiB"),
        (LETS_GO, "of memory, and may hold 0.391 GiB"),
        (MULTIPLIES, "processes at a time, and may run 20"),
        (NAMELESS + EATS, "of memory, and may hold 0.391 GiB"),
        (NAMELESS + MULTIPLIES, "processes at a time, and may run 20"),
        (SUBTRACTS + EATS, "of memory, and may hold 0.391 GiB"),
        (CR + EATS, "of memory, and may hold 0.391 GiB"),
        (LEAVES.replace("100", "300"), r"it left \d+ processes, and may run 20"),
    ],
    ids=[
        "memory",
        "shared memory",
        "files without a name",
        "memory let go of",
        "processes",
        "memory, nameless",
        "processes, nameless",
        "memory, a name like a line",
        "memory, a file's name like a line",
        "processes that ended",
    ],
)
def test_what_uses_too_much_is_ended_with_the_reason(source, words, box, tmp_path):
    before = set(psutil.pids())
    if "memfd" in source and isinstance(box, Bubblewrap):  # allowed where there are GPUs
        (tmp_path / "nvidia0").touch()
        box = Bubblewrap(SMALL, dev=tmp_path)
    program = Python(source, box)
    program.send({}, timeout_s=deadline_s(30))
    try:
        with pytest.raises(BoxedProgramError, match=words):
            program.receive()
    finally:
        program.close()
    left = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and source in (p.info["cmdline"] or [])]
    wait_until_dead(left)
    assert not any(map(is_alive, left))


@every_box
def test_what_has_ended_uses_nothing(box):
    program = Python(LEAVES, box)
    try:
        program.send({}, timeout_s=deadline_s(30))
        assert program.receive() == {}
    finally:
        program.close()


def test_who_does_not_read_its_orders_is_not_waited_for():
    program = Python("import time; time.sleep(60)", Processes(None))
    try:
        with pytest.raises(BoxedProgramError, match="took no order in time"):
            program.send({"answer": "1" * (1 << 20)}, timeout_s=1)
    finally:
        program.close()


@every_box
def test_what_can_not_be_watched_is_ended(box, monkeypatch):
    program = Python("import time; time.sleep(60)", box)
    monkeypatch.setattr("grading.boxes.sandbox.limit_watchdog.held_bytes", lambda _: 1 / 0)
    program.send({}, timeout_s=deadline_s(30))
    try:
        with pytest.raises(BoxedProgramError, match="could not be seen .ZeroDivisionError"):
            program.receive()
    finally:
        program.close()


@bubblewrap
def test_a_daemon_ends_with_the_box():
    """In the lesser one the host sees to it: see test_judge_answers."""
    seconds = str(random.randrange(10**6, 10**7))
    source = f"""if True:
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "{seconds}"])
            os._exit(0)
        time.sleep(60)
        """
    program = Python(source, Bubblewrap(SMALL))
    while not running(seconds):
        assert program._process.poll() is None
    program.close()
    assert not running(seconds)


def test_a_family_is_what_psutil_finds():
    nested = "import subprocess as s, threading as t; t.Thread(target=lambda: s.run(['sleep', '60'])).start()"
    with subprocess.Popen([sys.executable, "-c", nested]) as parent:
        while len(found := family(parent.pid)) < 2:
            time.sleep(0.01)
        assert found == [psutil.Process(parent.pid), *psutil.Process(parent.pid).children(recursive=True)]
        for process in reversed(found):
            process.kill()
    assert family(parent.pid) == []


@every_box
def test_closing_leaves_no_file(box, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = Python("open('left', 'w').write('behind'); import time; time.sleep(60)", box)
    assert len(os.listdir(tmp_path)) == 1
    program.close()
    assert os.listdir(tmp_path) == []


def test_folders_of_who_was_killed_are_cleared_up_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "import os; from grading.boxes.sandbox.scratch import *; Scratch().folder('left'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", source], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    ours = Scratch()
    assert left.exists()  # it is young: its maker may be about to lock it
    for path in (left, ours.path):
        os.utime(path, (0, 0))
    with closing(Scratch()) as another:
        assert set(tmp_path.iterdir()) == {ours.path, another.path}
    ours.close()
    assert not list(tmp_path.iterdir())


def test_the_grader_says_what_box_it_has(monkeypatch):
    assert best_box().name.startswith("plain processes" if Bubblewrap.obstacle() else "bubblewrap")
    assert best_box().limits == Limits.of_this_machine()
    monkeypatch.setattr(Bubblewrap, "obstacle", lambda: "bubblewrap is not installed")
    words = "plain processes, which can read and write what you can (bubblewrap is not installed)"
    assert best_box().name == words
