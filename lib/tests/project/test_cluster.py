"""The batch files of lib/cluster: with a stand-in for Slurm, and on a real one, whose two nodes are this machine."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from course_copy import ROOT
from deadlines import deadline_s
from web import page

from shardbench.slurm_here import obstacle, slurm_here

CLUSTER = ROOT / "lib" / "cluster"
JOB = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node-[1-2]"}
STAND_INS = {
    "srun": 'shift; for node in 1 2; do "$@" & done; wait',
    "scontrol": "echo 127.0.0.1; echo node-2",
    "torchrun": f'exec {sys.executable} -m torch.distributed.run --local-addr=127.0.0.1 "$@"',
    "shardlab": 'echo shardlab "$@"',
    "python": f'exec {sys.executable} "$@"',
}


@pytest.fixture
def cluster(tmp_path):
    """What a batch file finds, and where it is submitted."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, script in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"PATH": path, "PORT": str(port), "SLURM_SUBMIT_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    return {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | JOB | here


def batch(name: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(CLUSTER / name), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline_s(120),
        check=False,
        **options,
    )


def test_torchrun_is_called_once_on_each_node(cluster, tmp_path):
    (tmp_path / "programs" / "torchrun").write_text('#!/bin/bash\necho "$OMP_NUM_THREADS threads: $@"\n')
    done = batch("nodes.sbatch", "train.py", "--steps", "2", env=cluster | {"SLURM_GPUS_ON_NODE": "8"})
    meet = f"--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{cluster['PORT']} --rdzv-id=4711"
    called = f"1 threads: --nnodes=2 --nproc-per-node=8 {meet} --max-restarts=0 train.py --steps 2"
    assert done.stdout.splitlines() == [called] * 2, done.stderr
    more = cluster | {"SLURM_GPUS_ON_NODE": "8", "RANKS_PER_NODE": "3", "OMP_NUM_THREADS": "5"}
    assert "5 threads: --nnodes=2 --nproc-per-node=3 " in batch("nodes.sbatch", "train.py", env=more).stdout


@pytest.mark.night
def test_a_script_runs_on_all_ranks_of_two_nodes(cluster):
    done = batch("nodes.sbatch", str(CLUSTER / "hello.py"), env=cluster | {"SLURM_GPUS_ON_NODE": "1"})
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(rank \d) on .*: (\d) are there$", done.stdout, re.M) == [("rank 0", "2"), ("rank 1", "2")]


@pytest.mark.night
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_real_slurm_runs_a_script_on_two_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKS_PER_NODE", "2")
    before = slurm_processes()
    with slurm_here(nodes=2):
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        job = ["--wait", "--nodes=2", "--gpus-per-node=0", f"--output={tmp_path / 'out'}"]
        script = [CLUSTER / "nodes.sbatch", CLUSTER / "hello.py"]
        subprocess.run(["sbatch", *job, *script], check=True, timeout=deadline_s(120), cwd=tmp_path)
    said = (tmp_path / "out").read_text()
    assert re.findall(r"^rank (\d) on .*: 4 are there$", said, re.M) == ["0", "1", "2", "3"], said
    assert slurm_processes() <= before


def slurm_processes() -> set[psutil.Process]:
    names = {"munged", "slurmctld", "slurmd", "slurmstepd"}
    return {p for p in psutil.process_iter(["name"]) if p.info["name"] in names}


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "name a script"), (["train.py"], "no GPUs were asked for: set RANKS_PER_NODE")]
)
def test_what_is_missing_is_told(cluster, arguments, said):
    done = batch("nodes.sbatch", *arguments, env=cluster)
    assert done.returncode and said in done.stderr


def test_lessons_run_where_the_job_was_submitted(cluster, tmp_path):
    lessons = tmp_path / "course"
    lessons.mkdir()
    for name in ("00_a.ipynb", "01_b.ipynb"):
        (lessons / name).touch()
    ran = "run course/00_a.ipynb course/01_b.ipynb --junit build/course-4711.xml"
    assert batch("course.sbatch", env=cluster).stdout == f"shardlab doctor\nshardlab {ran}\n"
    assert "run x.ipynb --junit" in batch("course.sbatch", "x.ipynb", env=cluster).stdout


def test_jupyterlab_is_started_at_the_address_that_is_told(cluster):
    done = batch("jupyter.sbatch", env=cluster)
    port = re.search(r"-L (\d+):127.0.0.1:\1 ", done.stdout)[1]
    assert done.stdout.splitlines()[-1] == f"shardlab lab --no-browser --ip=127.0.0.1 --port={port}"
    assert f"begins with http://127.0.0.1:{port}\n" in done.stdout


@pytest.mark.night
def test_jupyterlab_answers_at_the_address_that_is_told(cluster, tmp_path):
    (tmp_path / "jupyter_server_config.py").write_text("c.ServerApp.allow_root = True")
    (tmp_path / "programs" / "shardlab").unlink()  # the real one, then
    command = ["bash", str(CLUSTER / "jupyter.sbatch")]
    with subprocess.Popen(command, env=cluster, stdout=subprocess.PIPE, text=True) as server:
        try:
            tunnel = server.stdout.readline()
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://127\S+token=\S+", line)))
            assert "<title>JupyterLab</title>" in page(address)
        finally:
            server.terminate()
    port = re.search(r"-L (\d+):127.0.0.1:\1 ", tunnel)[1]
    assert f":{port}/lab/tree/course/00_start_here.ipynb" in address


@pytest.mark.parametrize("file", sorted(CLUSTER.glob("*.sbatch")), ids=lambda p: p.name)
def test_options_stand_before_the_first_command(file):
    """Slurm reads none behind it."""
    lines = file.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert sum(line.startswith("#SBATCH") for line in lines[:first]) >= 5
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
