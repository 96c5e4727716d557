"""A real network of slow links on one machine: each rank has its own network namespace, and `tc` shapes the links.

[Note: nothing is left behind] Everything lives in anonymous namespaces (user, network, mount, process) of one child of
this process. The host's network is not visible from there, so no mistake can touch it. The child always ends with its
parent, even if the parent is killed. The kernel then removes everything, so there is nothing to clean up.

[Note: a shaped link] A pair of veth devices is a cable, and `htb` at the sender limits its bits per second. Frames are
jumbo, so that headers take under 1% of them. The token bucket is small, because its tokens let bytes pass for free
after a pause. Short packets overtake long ones. Otherwise an acknowledgement, or a rank's message that it can receive,
would wait for a millisecond of its own data in each step of a ring. (Network cards have many queues for this reason.)
Only sending is shaped: in a ring, whatever a rank receives is sent by one other rank. Many kernels lack `netem`, so
latency is not added but measured.

Linux only. Needs util-linux, iproute2 and user namespaces. Most systems allow user namespaces to every user. Most
containers allow them to no one.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import threading

_WORLD = "--user --map-root-user --net --mount --pid --fork --kill-child --mount-proc"
_UNSHARE = ["unshare", *_WORLD.split()]
_PACKAGES = {"unshare": "util-linux", "mount": "util-linux", "ip": "iproute2", "tc": "iproute2"}
_CLONE_NEWNET = 0x40000000
MTU_BYTES = 9000
BURST_BYTES = 32 << 10
_SHORT = "match u16 0 0xff00 at 2"  # matches packets whose length in the IP header is below 256 bytes


def missing() -> str | None:
    """Return why this machine can't do it, with a remedy; None if it can. Tries everything out, in 0.1 s."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}"
    absent = [tool for tool in _PACKAGES if shutil.which(tool, path=administrators_path()) is None]
    if absent:
        return f"no `{absent[0]}` here: install {_PACKAGES[absent[0]]}"
    trial = [*_UNSHARE, "sh", "-c", " && ".join(commands(1, 1, 1e9))]
    done = subprocess.run(
        trial, capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": administrators_path()}
    )
    if done.returncode == 0:
        return None
    why = done.stderr.strip() or f"exit code {done.returncode}"
    return f"user namespaces are switched off for this user, or the kernel can't shape links (sch_htb): {why}"


def run_inside(module: str, order: str, timeout_s: float) -> str:
    """Call `main(order)` of the module in a new process with its own namespaces, and return the line that it returns.

    Raises RuntimeError with the end of its output if it fails, and TimeoutExpired after `timeout_s`.
    """
    alive, parent = os.pipe()  # the pipe's other end closes when this process ends, even if it is killed
    call = f"end_with_parent({alive}); print(main({order!r}))"
    code = f"from shardbench.namespaces import end_with_parent; from {module} import main; {call}"
    command = [*_UNSHARE, sys.executable, "-c", code]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    surroundings = {"env": os.environ | {"PATH": administrators_path()}, "pass_fds": (alive,)}
    try:
        done = subprocess.run(command, timeout=timeout_s, **streams, **surroundings)
    finally:
        os.close(alive)
        os.close(parent)
    if done.returncode or not done.stdout:
        said = done.stdout[-4000:]
        raise RuntimeError(f"{module} ended with exit code {done.returncode} in its namespaces; it said:\n{said}")
    return done.stdout.splitlines()[-1]


def end_with_parent(alive: int) -> None:
    """End this process when the pipe `alive` closes. All others in its namespace end with it, the first process."""

    def watch() -> None:
        os.read(alive, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


# ---------------------------------------------------------------------------------------------------- inside, as "root"


def build(nodes: int, ranks_per_node: int, inside_bits_per_s: float, between_bits_per_s: float | None = None) -> None:
    """Make the network: see `commands`."""
    for command in commands(nodes, ranks_per_node, inside_bits_per_s, between_bits_per_s):
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}")


def commands(
    nodes: int, ranks_per_node: int, inside_bits_per_s: float, between_bits_per_s: float | None = None
) -> list[str]:
    """Return the shell commands that make the network: a bridge for each node, and one that joins the nodes' uplinks.

    Rank r is in the namespace `rank<r>`, with the address 10.77.0.<r + 1> on its device eth0.
    """
    lines = ["mount -t tmpfs none /run", "ip link set lo up"]  # our own /run, where `ip netns` keeps its names
    for node in range(nodes):
        lines += _bridge(f"node{node}")
        for rank in range(node * ranks_per_node, (node + 1) * ranks_per_node):
            lines += _rank(rank, f"node{node}", inside_bits_per_s)
    if nodes > 1:
        lines += _bridge("core")
        for node in range(nodes):
            lines += _cable(f"node{node}", "uplink", "core", f"port{node}")
            lines += [f"ip -n node{node} link set uplink master bridge"]
            lines += _shaped(f"node{node}", "uplink", between_bits_per_s)
    return lines


def _bridge(name: str) -> list[str]:
    return [f"ip netns add {name}", f"ip -n {name} link add bridge type bridge", f"ip -n {name} link set bridge up"]


def _rank(rank: int, node: str, bits_per_s: float) -> list[str]:
    here = f"rank{rank}"
    return [
        f"ip netns add {here}",
        f"ip -n {here} link set lo up",
        *_cable(here, "eth0", node, f"port{rank}"),
        f"ip -n {here} addr add 10.77.0.{rank + 1}/24 dev eth0",
        *_shaped(here, "eth0", bits_per_s),
    ]


def _cable(here: str, device: str, there: str, port: str) -> list[str]:
    """Return commands for a cable from a device in `here` to a port of the bridge in `there`."""
    return [
        f"ip link add {device} mtu {MTU_BYTES} netns {here} type veth peer name {port} mtu {MTU_BYTES} netns {there}",
        f"ip -n {there} link set {port} master bridge up",
        f"ip -n {here} link set {device} up",
    ]


def _shaped(namespace: str, device: str, bits_per_s: float) -> list[str]:
    """Return commands that limit a device's rate. Short packets (class 3) go before all others (class 2)."""
    tc, burst = f"tc -n {namespace}", f"burst {BURST_BYTES}b cburst {BURST_BYTES}b quantum 60000"
    whole, most, least = (f"{share * bits_per_s:.0f}bit" for share in (1.0, 0.9, 0.1))
    return [
        f"{tc} qdisc add dev {device} root handle 1: htb default 2",
        f"{tc} class add dev {device} parent 1: classid 1:1 htb rate {whole} {burst}",
        f"{tc} class add dev {device} parent 1:1 classid 1:2 htb rate {most} ceil {whole} {burst} prio 1",
        f"{tc} class add dev {device} parent 1:1 classid 1:3 htb rate {least} ceil {whole} {burst} prio 0",
        f"{tc} filter add dev {device} parent 1: protocol ip u32 {_SHORT} flowid 1:3",
    ]


def enter(namespace: str) -> None:
    """Move this thread, and all threads that it starts later, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"can't enter the network namespace {namespace!r}")


def administrators_path() -> str:
    """Return PATH with the folders of administrators' tools, which many users' PATH lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
