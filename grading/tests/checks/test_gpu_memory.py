"""Every lab and lesson fits on every card, by the planner; and a race on GPUs times computing, not launches."""

import re

import nbformat
import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s

from grading.bench import planned_gpu_memory_table
from grading.checks.lab2_ddp import judge_gradients
from grading.checks.lab2_ddp import on_ranks as lab2
from grading.checks.lab3_zero import on_ranks as lab3
from grading.checks.lab3_zero import step_and_buckets
from grading.checks.lab4_fsdp import on_ranks as lab4
from grading.judge.tensor_projections import distance, vector
from grading.samples.sample import read_lab
from shardcourse.repository import ROOT
from shardlab import launch
from shardlab.model import preset
from shardlab.tier import TIERS
from shardplan import tiers
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardsim.hardware import GPUS

ON_GPUS = [tier for tier in TIERS.values() if tier.gpus]


@pytest.mark.parametrize(("card", "n"), planned_gpu_memory_table.CARDS)
def test_every_lab_and_lesson_fits_with_a_margin(card, n):
    tier = planned_gpu_memory_table.tier_of(card, n)
    assert tier.gpus == n, "no GPU stays idle"
    there = (1 - tiers.SPARE) * GPUS[card].memory_bytes
    assert {what: n_bytes for what, n_bytes in planned_gpu_memory_table.needs(tier).items() if n_bytes > there} == {}


@pytest.mark.parametrize("tier", ON_GPUS, ids=lambda tier: tier.name)
def test_a_tier_is_refused_where_the_largest_of_them_would_not_fit(tier):
    assert max(planned_gpu_memory_table.needs(tier).values()) <= (1 - tiers.SPARE) * (
        tier.memory_bytes + planned_gpu_memory_table.MIB
    )


def test_the_readme_has_todays_table():
    """If not: `python -m grading.bench.planned_gpu_memory_table` prints it."""
    text = (ROOT / "lib" / "README.md").read_text()
    assert planned_gpu_memory_table.table() in text


def test_lab_4_states_what_ddp_takes_on_each_gpu_tier():
    (cell,) = [c for c in read_lab("labs", "lab4_fsdp").cells if c.metadata.nbgrader.grade_id == "budgets_text"]
    found = re.findall(
        r"^\| `(gpu\S+)` \| (\d).*? \| (\w+), (\d+) blocks \| (\d+) MiB, planned \| (\d+) MiB", cell.source, re.M
    )
    for (name, ranks, size, n_layers, ddp, budget), tier in zip(found, ON_GPUS, strict=True):
        model = tiers.chosen(name)
        due = memory_plan(tiers.setup(tiers.PLACES[name], model, sharding="DDP"), every_block=False).peak.n_bytes
        assert (name, int(ranks), int(n_layers)) == (tier.name, tier.world_size, tier.model.n_layers)
        assert tier.model == preset(size)
        assert (int(ddp), int(budget)) == (round(due / tiers.MIB), lab4.BUDGETS[name])


@pytest.mark.night
def test_the_bounds_that_are_no_plans_hold_on_cpu_ranks():
    """Of lab 3's given program, in times of its weights."""
    shares = lab3.shares(1, 4)
    replies = launch(lab3.memory, 4, lab3.Replicated, 1, "cpu", shares, 0.25, device="cpu", timeout_s=deadline_s(60))
    most = max(sum(n for name, n in r["peak"].items() if name != "where") for r in replies)
    assert most / step_and_buckets.psi_bytes("cpu") < planned_gpu_memory_table.REPLICATED


# Where large models are drawn: a billion numbers take a CPU's thread half a minute


@pytest.fixture
def drawn(monkeypatch):
    """Return a stand-in for a model's class, which raises where it would be drawn. The rank's device is meta here."""

    class Drawn(Exception):
        pass

    def draw(*args, **options):
        raise Drawn(torch.empty(0).device.type)

    for lab in (lab3, lab4):
        monkeypatch.setattr(lab, "local_device", lambda: torch.device("meta"))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    draw.error = Drawn
    return draw


def test_labs_3_and_4_draw_the_tiers_model_on_the_ranks_device(drawn, monkeypatch):
    monkeypatch.setattr(lab3, "Net", drawn)
    monkeypatch.setattr(lab4, "Transformer", drawn)
    with pytest.raises(drawn.error, match="meta"):
        lab3.Run(lab3.Replicated, 0, "gpu4", [4])
    with pytest.raises(drawn.error, match="meta"):
        lab4.build(preset("1B"), 0)


def test_lesson_12_draws_the_tiers_model_on_the_ranks_device(drawn):
    lesson = nbformat.read(ROOT / "course" / "12_profiling.ipynb", as_version=4)
    (cell,) = [c for c in lesson.cells if "def make_step(" in c.source]
    names = {"tier": TIERS["gpu8"], "seed": 0, "torch": torch, "Transformer": drawn}
    names["local_device"] = lambda: torch.device("meta")
    exec(cell.source, names)
    with pytest.raises(drawn.error, match="meta"):
        names["make_step"]()


# Lab 2's race


@pytest.mark.parametrize(("card", "n"), planned_gpu_memory_table.CARDS)
def test_a_race_on_gpus_times_computing(card, n):
    """The planner's share of launches in a micro-batch; of the model that CPUs train, most is launches."""
    tier = planned_gpu_memory_table.tier_of(card, n)
    assert launches(card, tier, lab2.LAP_SHAPES["cpu"]) > 0.4
    assert launches(card, tier, lab2.lap_shape(tier.name)) < 0.1


def launches(card, tier, shape) -> float:
    """The share of a step in which a GPU waits for launches. Ranks that share a GPU each get that part of its time."""
    sizes = {"micro_batch": shape["samples"], "seq_len": shape["seq_len"], "sharding": "DDP", "precision": "fp32"}
    model = Shape.of("lap", preset(shape["size"], n_layers=shape["n_layers"]))
    parts_s = speed_plan(setup_of(model, f"{card} x {tier.world_size}", tier.world_size, **sizes)).parts_s
    computed_s = parts_s["computation"]
    waits_s = max(0.0, computed_s + parts_s["launch"] - computed_s * tier.world_size / tier.gpus)
    return waits_s / (waits_s + computed_s)


def test_a_lap_is_checked_with_the_tiers_own_model(monkeypatch):
    """One CPU rank serves the lap of a GPU tier. It is made small, and has one micro-batch, for which DDP is right."""
    shape = lab2.LAP_SHAPES["cpu"] | {"n_layers": 2, "count": 1, "seq_len": 16}
    monkeypatch.setitem(lab2.LAP_SHAPES, "gpu4", shape)

    def ranks():
        lab2.LAP_SHAPES["gpu4"] = shape
        found = []
        lab2.serve_laps = lambda _, lap: found.append(lap({"seed": 5}))
        lab2.laps(None, 0.25, "gpu8", "")
        return found[0]

    (reply,) = launch(ranks, 1, device="cpu", timeout_s=deadline_s(60))
    for step, proof in enumerate(reply["steps"]):
        truths = {tier: judge_gradients.lap_proof_of(5, 1, step=step, tier=tier) for tier in ("gpu8", "cpu")}
        off = {tier: distance(vector(proof), truth) for tier, truth in truths.items()}
        assert off["gpu8"] < 1e-3 < off["cpu"]
