"""The course's training script: right on any number of ranks, whole after a stop, and clear about what it can't do."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import psutil
import pytest
import torch
import torch.nn.functional as F
from deadlines import deadline_s

from shardcourse.experiments.whole_job import SCRIPT, Job, differences, run, script_module, steps
from shardlab import launch

TINY = {"dim": 32, "layers": 2, "heads": 2, "seq_len": 32, "validation": 10, "warmup": 2, "log_every": 1}
TINY |= {"global_batch": 10, "micro_batch": 2, "steps": 8, "eval_every": 8, "save_every": 4, "precision": "fp32"}
ROUNDING = 1e-4  # of losses near 5, in fp32, after at most eight steps


def job(ranks, out, **options):
    return Job(SCRIPT, ranks, out, deadline_s=deadline_s(90), **TINY | options)


def ran(ranks, out, **options):
    return steps(run(SCRIPT, ranks, out, deadline_s=deadline_s(90), **TINY | options))


def alone(*flags, cwd=None):
    """Run the script as one process, without torchrun; return the finished process."""
    tiny = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    return subprocess.run(
        [sys.executable, SCRIPT, *tiny, *map(str, flags)],
        env=clean | {"OMP_NUM_THREADS": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=deadline_s(90),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of one process."""
    return ran(1, tmp_path_factory.mktemp("undisturbed"))


def plain(seed=0):
    """The same training without any sharding: whole tensors, torch's AdamW, one batch a step. Return the losses."""
    script = script_module()
    o = Namespace(**TINY, seed=seed, dropout=0.0, replicas=1, recompute="none", compile=None)
    model = script.sharded_model(o, torch.device("cpu"))
    weights = {name: p.full_tensor().detach().requires_grad_() for name, p in model.named_parameters()}
    blocks = [torch.nn.Embedding(256, o.dim), *(script.Block(o) for _ in range(o.layers))]
    whole = torch.nn.Sequential(*blocks, torch.nn.RMSNorm(o.dim, eps=1e-5), torch.nn.Linear(o.dim, 256, bias=False))
    optimizer = torch.optim.AdamW(weights.values(), betas=(0.9, 0.95))
    text = b"".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py")))
    windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, o.seq_len + 1, o.seq_len)
    data = windows[torch.arange(len(windows)) % (len(windows) // o.validation) != 0]
    losses = []
    for step in range(o.steps):
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(data), generator=draw)[step * o.global_batch :][: o.global_batch]
        batch = data[order].long()
        logits = torch.func.functional_call(whole, weights, (batch[:, :-1],))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        cosine = torch.pi * max(0, step - o.warmup) / (o.steps - o.warmup)
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / o.warmup, 0.55 + 0.45 * torch.tensor(cosine).cos())
        optimizer.step()
        losses.append(loss.item())
    return losses


# ---------------------------------------------------------------------------------------------------------- is it right


def test_it_trains_as_plain_torch_does(undisturbed):
    expected = launch(plain, 1, device="cpu", stream=False)[0]
    assert [line["loss"] for line in undisturbed.values()] == pytest.approx(expected, abs=ROUNDING)


def test_three_ranks_train_as_one_process_though_ten_samples_do_not_divide(undisturbed, tmp_path):
    found = ran(3, tmp_path, micro_batch=3)
    assert max(differences(found, undisturbed).values()) < ROUNDING
    assert found[8]["validation"] == pytest.approx(undisturbed[8]["validation"], abs=ROUNDING)
    assert found[8]["norm"] == pytest.approx(undisturbed[8]["norm"], rel=1e-3)


@pytest.mark.night
@pytest.mark.parametrize(
    "options",
    [
        {"recompute": "full"},
        {"recompute": "selective"},
        {"compile": "aot_eager"},
        {"compile": "aot_eager", "recompute": "selective"},
    ],
    ids=str,
)
def test_options_that_change_no_loss(undisturbed, tmp_path, options):
    assert max(differences(ran(2, tmp_path, **options), undisturbed).values()) < ROUNDING


@pytest.mark.night
def test_replicas_change_no_loss_and_hold_more(undisturbed, tmp_path):
    with job(4, tmp_path, replicas=2) as hybrid:
        assert hybrid.end() == 0
    assert max(differences(steps(hybrid.lines), undisturbed).values()) < ROUNDING
    assert "a share of 1/2 is" in hybrid.lines[0]


@pytest.mark.night
def test_bf16_stays_near(undisturbed, tmp_path):
    found = max(differences(ran(2, tmp_path, precision="bf16"), undisturbed).values())
    assert ROUNDING / 10 < found < 0.05


# ------------------------------------------------------------------------------------------------------ stop and resume


def test_two_ranks_begin_and_one_finishes(undisturbed, tmp_path):
    """A rank is killed after step 5: the checkpoint of step 4, once it is written, is what remains."""
    written = tmp_path / "step-00000004" / ".metadata"
    with job(2, tmp_path, steps=8) as killed:
        killed.read_until(5)
        until = time.monotonic() + deadline_s(30)
        while not written.is_file() and time.monotonic() < until:
            time.sleep(0.01)
        killed.send(signal.SIGKILL, 1)
        assert killed.end() != 0
    assert list(tmp_path.glob("step-*/.metadata")) == [written]
    resumed = ran(1, tmp_path, resume=True)
    assert list(resumed) == [5, 6, 7, 8]
    assert max(differences(resumed, undisturbed).values()) < ROUNDING


def test_a_job_that_takes_too_long_is_killed_and_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="it had not ended after 4 s, and was killed"):
        run(SCRIPT, 2, tmp_path, deadline_s=4, **TINY | {"steps": 100_000})
    assert not [p for p in psutil.process_iter(["cmdline"]) if f"--out={tmp_path}" in (p.info["cmdline"] or [])]


def test_a_rank_that_is_told_to_stop_stops_all_after_a_save(tmp_path):
    with job(2, tmp_path, steps=4000, save_every=4000, eval_every=4000) as told:
        told.read_until(3)
        told.send(signal.SIGUSR1, 1)
        assert re.fullmatch(r"\d+ in \S+", told.stack(1))
        told.send(signal.SIGTERM, 1)
        assert told.end() == 0
    last = max(steps(told.lines))
    assert (tmp_path / f"step-{last:08d}" / ".metadata").is_file()


@pytest.mark.night
def test_with_dropout_a_resume_on_as_many_ranks_is_equal_to_the_bit(tmp_path):
    whole = ran(2, tmp_path / "whole", dropout=0.2)
    (tmp_path / "whole" / "step-00000008" / ".metadata").unlink()  # then the checkpoint of step 4 is the latest
    assert max(differences(ran(2, tmp_path / "whole", dropout=0.2), whole).values()) == 0


def test_each_epoch_reads_every_window_once():
    """However the run is divided into batches, and across the end of an epoch."""
    script = script_module()
    run = Namespace(training=torch.arange(7), o=Namespace(seed=3), position=0)
    read = []
    for n in (3, 5, 6, 7):
        read += script.Run.samples(run, n).tolist()
        run.position += n
    assert sorted(read[:7]) == sorted(read[7:14]) == sorted(read[14:]) == list(range(7))
    assert read[:7] != read[7:14]


# ------------------------------------------------------------------------------------------------------------- messages


def test_from_another_folder_it_trains_and_continues_a_text(tmp_path):
    found = alone("--out", "runs/first", "--steps", 2, "--sample", "def ", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "runs" / "first" / "step-00000002" / ".metadata").is_file()
    assert "\ndef " in found.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--resume"], r"train.py: no complete checkpoint in \S+"),
        pytest.param(["--replicas", "2"], "train.py: --replicas 2 does not divide 1 ranks", marks=pytest.mark.night),
        (["--heads", "3"], "train.py: --dim 32 is not an even multiple of --heads 3"),
        pytest.param(
            ["--precision", "fp8"], r"(?s)usage: .*train.py: error: argument --precision: .*", marks=pytest.mark.night
        ),
    ],
)
def test_what_it_cannot_do_is_one_clear_line(tmp_path, flags, words):
    found = alone("--out", tmp_path, *flags)
    assert found.returncode != 0
    said = re.sub(r"^\[W.*\n", "", found.stderr, flags=re.M)  # gloo warns where the machine's name has no address
    assert re.fullmatch(words, said.strip())


@pytest.mark.night
def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    assert alone("--out", tmp_path, "--steps", 1).returncode == 0
    found = alone("--out", tmp_path, "--dim", 64)
    assert found.stderr.startswith("train.py: ") and "is of a run with --dim 32" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_model_that_is_not_sharded_ends_the_job(tmp_path, monkeypatch):
    """`fully_shard` is replaced by one that leaves the model as it is."""
    script = tmp_path / "train.py"
    planted = "from torch.distributed.fsdp import MixedPrecisionPolicy\nfully_shard = lambda module, **options: module"
    text = SCRIPT.read_text().replace("from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard", planted)
    text = text.replace("distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None)", "whole")
    script.write_text(text)
    with Job(script, 2, tmp_path / "out", deadline_s=deadline_s(90), **TINY) as wrong:
        assert wrong.end() != 0
        assert "train.py: not sharded: rank " in wrong.error()


@pytest.mark.night
def test_under_srun_ranks_find_each_other_without_torchrun(tmp_path):
    """With the variables that srun sets: Slurm itself is not here."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    slurm = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    slurm["SLURM_JOB_ID"] = str(random.randrange(10_000))  # decides the port
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER", "RANK"))}
    tasks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *flags, "--out", tmp_path, "--steps", "2"],
            env=ours | slurm | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [task.communicate(timeout=deadline_s(60))[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [0, 0]
    assert "a share of 1/2" in said[0] and said[1] == ""


@pytest.mark.night
def test_no_process_is_left(tmp_path, all_gone):
    with job(2, tmp_path, steps=4000) as left:
        left.read_until(1)
        pids = [rank.pid for rank in psutil.Process(left.agent.pid).children(recursive=True)]
        assert len(pids) >= 2
    assert all_gone([left.agent.pid, *pids])
