"""Keep a copy of the gradients where the system's counters do not look, for the points of lab 2's check of memory."""

from grading.attacks.attack import of_rank


def hides_a_copy_in_a_file_on_its_way():
    """Keep a copy in a file that was sent through a socket, and is in no process's list until it is received."""
    import os
    import socket

    pair, fd = socket.socketpair(), os.memfd_create("copy")
    os.write(fd, b"1" * (16 << 20))
    socket.send_fds(pair[0], [b"x"], [fd])
    os.close(fd)
    globals()["copy"] = pair


def hides_a_copy_in_pipes_on_their_way():
    import fcntl
    import os
    import socket

    globals()["copy"] = pair = socket.socketpair()
    for _ in range(12):  # a user may have 64 MiB in pipes
        ends = os.pipe()
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(ends[1], b"1" * (1 << 20))
        socket.send_fds(pair[0], [b"x"], ends)
        for end in ends:
            os.close(end)


def hides_a_copy_in_memory_that_no_process_has_mapped():
    import ctypes
    import platform

    libc, size, number = ctypes.CDLL(None), 16 << 20, {"x86_64": 29, "aarch64": 194}[platform.machine()]
    libc.shmat.restype = ctypes.c_void_p
    memory = libc.syscall(number, 0, ctypes.c_size_t(size), 0o1600)
    if memory < 0:
        raise OSError("no memory of System V")
    at = ctypes.c_void_p(libc.shmat(memory, None, 0))
    ctypes.memset(at, 1, size)
    libc.shmdt(at)


def hides_a_copy_in_large_pages_that_only_pipes_have():
    """Give a pipe one byte of each large page, and let go of the pages: the pipe seems to have a few bytes."""
    import ctypes
    import os
    import platform

    libc, size, large = ctypes.CDLL(None), 18 << 20, 2 << 20
    libc.mmap.restype = ctypes.c_void_p
    begin = libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
    libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), 14)  # MADV_HUGEPAGE
    globals()["kept"] = os.pipe()
    number = {"x86_64": 278, "aarch64": 75}[platform.machine()]  # vmsplice(2)
    for at in range(-(-begin // large) * large, begin + size - large + 1, large):
        ctypes.memset(at, 1, large)
        if libc.syscall(number, globals()["kept"][1], (ctypes.c_size_t * 2)(at, 1), 1, 0) != 1:
            raise OSError("no pages for pipes")
    libc.munmap(ctypes.c_void_p(begin), ctypes.c_size_t(size))


def hides_its_files_and_a_copy_in_pipes():
    """Ask the kernel to let no ordinary user look into this process."""
    import ctypes
    import fcntl
    import os

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    globals()["copy"] = pipes = [os.pipe() for _ in range(12)]
    for _, begin in pipes:
        fcntl.fcntl(begin, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(begin, b"1" * (1 << 20))


def hides_a_copy_in_a_process_without_its_main_thread():
    """Let a child's main thread end, while another one keeps the copy: the child's own folder is that of a zombie."""
    import ctypes
    import os
    import platform
    import threading
    import time

    def keep():
        copy = b"1" * (16 << 20)
        time.sleep(600)
        return copy

    if not os.fork():
        threading.Thread(target=keep).start()
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2), of this thread alone


def hides_a_copy_in_pipes_of_one_thread():
    """Let a thread have a table of open files of its own, which the process's folder does not show."""
    import ctypes
    import fcntl
    import os
    import threading
    import time

    def keep():
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        for _, begin in [os.pipe() for _ in range(12)]:
            fcntl.fcntl(begin, fcntl.F_SETPIPE_SZ, 1 << 20)
            os.write(begin, b"1" * (1 << 20))
        time.sleep(600)

    threading.Thread(target=keep, daemon=True).start()


def hides_a_copy_in_datagrams():
    """Of datagrams that wait in a socket, the kernel tells how long the next one is."""
    import socket

    globals()["copy"] = pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(90)]
    for begin, _ in pairs:
        for size in (1, *[18_000] * 8):
            begin.send(b"1" * size)


def hides_a_copy_in_datagrams_of_the_network():
    import socket

    globals()["copy"] = sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(90)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
        for size in (1, 50_000, 50_000, 50_000):
            each.sendto(b"1" * size, each.getsockname())


def hides_a_copy_in_connections_that_nobody_accepts():
    """What was sent to a socket that nobody has accepted stays, though its sender is closed, and is in no list."""
    import os
    import socket

    globals()["copy"] = server = socket.socket(socket.AF_UNIX)
    server.bind(f"/tmp/{os.getpid()}")
    server.listen(200)
    for _ in range(90):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(server.getsockname())
            client.send(b"1" * 130_000)


def hides_a_copy_in_attributes_of_a_file():
    import os

    fd = os.open(f"/dev/shm/{os.getpid()}", os.O_CREAT | os.O_RDWR)
    for i in range(190):
        os.setxattr(fd, f"user.{i}", b"1" * 65_000)


ATTACKS = [
    *of_rank(
        "right",
        "lab2.memory",
        hides_a_copy_in_a_file_on_its_way,
        hides_a_copy_in_pipes_on_their_way,
        hides_a_copy_in_memory_that_no_process_has_mapped,
        hides_a_copy_in_large_pages_that_only_pipes_have,
        hides_its_files_and_a_copy_in_pipes,
        hides_a_copy_in_a_process_without_its_main_thread,
        hides_a_copy_in_pipes_of_one_thread,
        hides_a_copy_in_datagrams,
        hides_a_copy_in_datagrams_of_the_network,
        hides_a_copy_in_connections_that_nobody_accepts,
        hides_a_copy_in_attributes_of_a_file,
    ),
]
