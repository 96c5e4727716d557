"""`shardlab doctor` on machines with GPUs that torch does not use: it says which, why, and what works."""

import fake_nvidia_smi
import pytest
import torch

from shardcourse.cli.accelerators import accelerators

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\n"
CLOSED_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc "
)
CLOSED_MODULE += "version 12.3.0 (Ubuntu)\n"


@pytest.fixture(autouse=True)
def no_gpu(tmp_path, monkeypatch):
    """torch sees no GPU, there is no nvidia-smi, and nothing is below the root."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def machine(tmp_path):
    """machine({path below the root: content}): what `accelerators` finds there."""

    def look(files: dict[str, str]) -> dict:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return {f.what: f for f in accelerators(tmp_path)}

    return look


def nvidia(driver: str = "", n: int = 2) -> dict[str, str]:
    cards = {f"dev/nvidia{i}": "" for i in range(n)} | {"dev/nvidiactl": "", "dev/nvidia-uvm": ""}
    return cards | ({"proc/driver/nvidia/version": driver} if driver else {})


def test_without_gpus_cpus_are_enough(machine):
    found = machine({})
    assert found.keys() == {"GPUs"} and found["GPUs"].mark == "ok" and "none" in found["GPUs"].found


def test_a_driver_that_is_too_old_fails_with_both_versions(machine):
    gpus = machine(nvidia(CLOSED_MODULE))["GPUs"]
    assert gpus.mark == "!!"
    assert "2 of NVIDIA's, and torch sees none: driver 550.54.15" in gpus.found and "CUDA 13.0" in gpus.found
    assert "CUDA 13.0 needs driver 580 or newer" in gpus.remedy and "whl/cu126" in gpus.remedy


@pytest.mark.parametrize(("cuda", "needs"), [("12.8", False), ("13.0", True)])
def test_which_driver_is_needed_follows_from_the_builds_cuda(cuda, needs, machine, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert ("or newer" in machine(nvidia(CLOSED_MODULE))["GPUs"].remedy) == needs


def test_with_a_new_driver_torch_itself_is_asked(machine, monkeypatch):
    def init():
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable\nmore words")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    gpus = machine(nvidia(OPEN_MODULE))["GPUs"]
    assert gpus.mark == "!!" and "driver 580.65.06" in gpus.found
    assert "CUDA_VISIBLE_DEVICES is '7'" in gpus.remedy and gpus.remedy.endswith("busy or unavailable")


def test_where_the_kernel_does_not_tell_the_driver_nvidia_smi_does(machine, tmp_path, monkeypatch):
    fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, {"driver_version": "550.54.15\n550.54.15\n"})
    assert "driver 550.54.15" in machine(nvidia())["GPUs"].found


def test_files_of_gpus_without_a_driver_are_a_container_that_was_started_without(machine):
    gpus = machine(nvidia())["GPUs"]
    assert gpus.mark == "!!" and "driver unknown" in gpus.found and "--gpus all" in gpus.remedy


def test_a_build_for_cpus_is_named(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    gpus = machine(nvidia(OPEN_MODULE))["GPUs"]
    assert gpus.mark == "!!" and "built without CUDA" in gpus.found and "install a build for CUDA" in gpus.remedy


@pytest.mark.parametrize("shown", ["", "-1"])
def test_gpus_that_were_hidden_are_no_error(shown, machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    gpus = machine(nvidia(OPEN_MODULE))["GPUs"]
    assert gpus.mark == "ok" and "hidden by CUDA_VISIBLE_DEVICES" in gpus.found


def test_wsl_is_named_and_its_gpu_is_nvidias_if_nvidia_smi_says_so(machine, tmp_path, monkeypatch):
    """It has no /dev/nvidia0."""
    fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, {"uuid": "GPU-aa\n", "driver_version": "552.22\n"})
    files = {"dev/dxg": "", "proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}
    found = machine(files)
    assert "Linux in Windows; its GPUs are here" in found["WSL2"].found
    assert found["GPUs"].mark == "!!" and "1 of NVIDIA's" in found["GPUs"].found and "552.22" in found["GPUs"].found
    (tmp_path / "dev" / "dxg").unlink()
    assert "no GPU" in machine({})["WSL2"].found


def test_plain_linux_is_not_wsl(machine):
    assert "WSL2" not in machine({"proc/sys/kernel/osrelease": "6.8.0-45-generic\n"})


def test_amds_gpus_without_a_build_for_them_only_matter_to_who_wants_to_try(machine):
    gpus = machine({"dev/kfd": "", "dev/dri/renderD128": ""})["GPUs"]
    assert gpus.mark == "--" and "not built for ROCm" in gpus.found and "CPU ranks" in gpus.found


def test_a_build_for_rocm_that_sees_none_fails(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    gpus = machine({"dev/kfd": ""})["GPUs"]
    assert gpus.mark == "!!" and "groups render and video" in gpus.remedy


@pytest.mark.parametrize(("where", "name"), [(torch.backends.mps, "Apple"), (torch.xpu, "Intel")])
def test_other_makers_gpus_are_named_and_not_used(where, name, machine, monkeypatch):
    monkeypatch.setattr(where, "is_available", lambda: True)
    gpus = machine({})["GPUs"]
    assert gpus.mark == "ok" and name in gpus.found and "CPU ranks" in gpus.found


# GPUs in use


@pytest.fixture
def used(tmp_path, monkeypatch):
    """used(compute capability, architectures of the build): the findings on two cards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "Some Card")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 3), raising=False)

    def look(capability: str, architectures: str) -> dict:
        monkeypatch.setattr(torch.cuda, "get_arch_list", architectures.split)
        fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, {"compute_cap": f"{capability}\n" * 2})
        return {f.what: f for f in accelerators(tmp_path)}

    return look


CUDA_13 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ("7.0", CUDA_13, False),  # V100
        ("7.0", "sm_70 " + CUDA_13, True),
        ("7.5", CUDA_13, True),  # T4
        ("8.9", CUDA_13, True),  # L4: sm_86's code
        ("9.0", "sm_90a", True),
        ("12.1", CUDA_13, True),
        ("13.0", CUDA_13, True),  # compiled from compute_120 when it is first used
        ("10.0", "sm_80 sm_90", False),
    ],
)
def test_cards_without_kernels_in_torchs_build_are_found(capability, architectures, runs, used):
    found = used(capability, architectures)
    assert "2: Some Card; CUDA 13.0, NCCL 2.29.3" in found["GPUs"].found
    assert ("GPU kernels" not in found) == runs
    if not runs:
        assert found["GPU kernels"].mark == "!!" and capability in found["GPU kernels"].found


def test_rocm_is_named_as_what_it_is(used, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert 'AMD, ROCm 6.4: torch calls them "cuda"' in used("", "gfx942")["GPUs"].found
