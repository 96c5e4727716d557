"""What a box shows of a machine's GPUs: files in a made-up /dev, folders and variables; and nothing else of theirs."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from course_copy import ROOT
from deadlines import deadline_s
from test_sandbox import SMALL, bubblewrap

from grading.boxes.rank_launcher_client import RankLauncher, RanksFailedError
from grading.boxes.sandbox import Bubblewrap, Processes, gpu_access
from grading.boxes.sandbox.boxed_program import clean_environment
from shardlab.launch.rank_main import SETUP_S

MACHINES = {  # what is in /dev -> what the box has of it
    "NVIDIA": (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"],) * 2,
    "WSL2": (["dxg"],) * 2,
    "ROCm": (["kfd", "dri/renderD128"],) * 2,
    "Jetson": (["nvhost-gpu", "nvmap", "nvgpu/igpu0/ctrl"],) * 2,
    "a laptop's display": (["dri/card0"], []),
    "disks": (["sda", "kvm"], []),
}


def run(box, source: str, *arguments: str, **environment: str) -> str:
    command = box.command([sys.executable, "-c", source, *arguments])
    given = clean_environment("/tmp", own_namespaces=True) | environment
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=deadline_s(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def made_up(dev: Path, names: list[str]) -> Path:
    for name in names:
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).write_text(name)
    return dev


@bubblewrap
@pytest.mark.parametrize("machine", MACHINES)
def test_the_files_of_gpus_are_in_the_box(machine, tmp_path):
    there, shown = MACHINES[machine]
    ask = "import os, sys; print(*(n for n in sys.argv[1:] if os.path.exists('/dev/' + n)), sep='\\n')"
    assert run(Bubblewrap(SMALL, dev=made_up(tmp_path / "dev", there)), ask, *there).split() == shown


def test_a_link_that_leads_nowhere_does_not_break_the_box(tmp_path):
    (tmp_path / "nvidia0").symlink_to(tmp_path / "gone")
    assert gpu_access.devices(tmp_path) == []


def test_a_folder_that_can_not_be_listed_is_told(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no/such/folder"):
        Bubblewrap(SMALL, dev=Path("/no/such/folder")).command(["true"])

    def refused(*_):
        raise PermissionError(13, "Permission denied", "/dev")

    monkeypatch.setattr(gpu_access, "devices", refused)
    assert "Permission denied: '/dev'" in Bubblewrap.obstacle.__wrapped__()


KEPT = {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HIP_VISIBLE_DEVICES": "2"}
KEPT |= {"ROCR_VISIBLE_DEVICES": "3", "ZE_AFFINITY_MASK": "0.1", "NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN"}
OF_THE_NETWORK = {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_NET": "IB"}
NOT_KEPT = {"SECRET": "1", "CUDA_INJECTION64_PATH": "/spy.so", "LD_PRELOAD": "/spy.so", "MY_NCCL_KEY": "1"}


def test_the_box_knows_which_gpus_and_how(monkeypatch):
    """A box has no network but its own loopback: NCCL must not look there for the cluster's."""
    for name, value in (KEPT | OF_THE_NETWORK | NOT_KEPT).items():
        monkeypatch.setenv(name, value)
    names = KEPT | OF_THE_NETWORK | NOT_KEPT
    inside, plain = (clean_environment("/tmp", own_namespaces) for own_namespaces in (True, False))
    assert {k: v for k, v in inside.items() if k in names} == KEPT
    assert {k: v for k, v in plain.items() if k in names} == KEPT | OF_THE_NETWORK


@bubblewrap
def test_drivers_libraries_are_in_the_box_and_nothing_private(tmp_path, monkeypatch):
    """LD_LIBRARY_PATH may name anything; an empty or relative entry means the folder of the program that is run."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    places = [tmp_path / "driver", home, tmp_path / "only text", ROOT / "solutions"]
    for place in places[:3]:
        place.mkdir()
        (place / "notes").write_text("x")
    for place in (tmp_path / "driver", home):
        (place / "libcuda.so.1").write_text("x")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(["", ".", "lib", "/no/such", *map(str, places), "/tmp", ""]))
    ask = "import os, sys; print(*(int(bool(os.path.isdir(p) and os.listdir(p))) for p in sys.argv[1:]))"
    assert run(Bubblewrap(SMALL), ask, *map(str, places)).split() == ["1", "0", "0", "0"]
    assert gpu_access.folders(course=tmp_path, private=()) == []
    path = clean_environment("/tmp", True)["LD_LIBRARY_PATH"].split(":")
    assert path[0] == str(places[0]) and all(map(os.path.isabs, path)) and "/no/such" not in path


@bubblewrap
def test_the_multi_process_service_is_reached_from_the_box(tmp_path, monkeypatch):
    pipe = tmp_path / "mps" / "control"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipe.parent))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run(Bubblewrap(SMALL), "import os; open(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control', 'w').write('hello')")
    assert os.read(reader, 100) == b"hello"
    os.close(reader)


def test_ranks_that_get_no_gpu_say_so_and_may_take_long_to_get_ready(monkeypatch):
    """Where a box lacks them, the reason is the launcher's, and not that some process ended."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    setting = {"world_size": 1, "timeout_s": 1.0, "device": "cuda"}
    with closing(RankLauncher("grading.checks.lab2_ddp.on_ranks", box=Processes(None))) as launcher:
        launcher.begin("plan", None, **setting)
        allowed_s = launcher._deadline - time.monotonic()
        with pytest.raises(RanksFailedError, match='device="cuda", but torch finds no GPU here'):
            launcher.finish()
    assert allowed_s > SETUP_S
