"""Lab 8's class before the referee, and what the judges rest on: a choice that follows from the drawn facts."""

import json
from dataclasses import fields
from functools import partial
from unittest.mock import patch

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, judge_replies, try_sample
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from grading.checks.lab8_capstone import job, judge_tokens_per_s, judge_weights_memory_links, on_ranks
from grading.judge.timed_laps import Lap
from grading.references.lab8_capstone import fastest_strategy, fastest_strategy_program
from grading.samples.sample import read_lab
from grading.samples.trial import run_cells
from shardlab import launch
from shardsim import simulated
from shardsim.slept_computation import Computation

LAB = "lab8_capstone"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_what_a_card_computes_at_the_same_time_counts_once():
    sleeps = [Computation("", "forward", *when) for when in ((2.0, 2.5), (0.0, 1.0), (0.5, 1.5), (0.75, 1.25))]
    assert on_ranks.busy_s(sleeps) == 2.0


@pytest.mark.night
@pytest.mark.parametrize(
    "looked_at", [(1, 7, 8), pytest.param((1, 7, 8, 15, 22, 23), marks=pytest.mark.night)], ids=["anew", "a long race"]
)
def test_proofs_hold_in_every_lap_of_a_race(looked_at):
    """Trained on without end, rounding alone would be as far off after some twenty laps as work that was left out."""
    n_laps = max(looked_at) + 1
    facts = job.draw(0)["8x1"] | on_ranks.NO_TIME
    choice = fastest_strategy.best(job.job_of(job.draw(0)["8x1"]))

    def ranks():
        found = []
        on_ranks.serve_laps = lambda _, lap: found.extend(json.dumps(lap({"seed": 7 * i})) for i in range(n_laps))
        on_ranks.laps(lambda model, job: fastest_strategy_program.follow_choice(model, job, choice), facts, "")
        return [json.loads(reply) for reply in found]

    by_rank = launch(ranks, job.RANKS, device="cpu", network=simulated(facts["network"]))
    for i in looked_at:
        replies = [of_rank[i] for of_rank in by_rank]
        assert judge_tokens_per_s._trained_on(Lap(7 * i, replies, 0.0))
        replies[3] |= {"proof": by_rank[3][i - 1]["proof"]}
        assert not judge_tokens_per_s._trained_on(Lap(7 * i, replies, 0.0))


def test_all_weights_prove_a_step_and_not_the_norms_alone():
    """A rank replies for its part: here all have the whole, an eighth of which each adds."""
    seeds = [3, 11]
    steps = [judge_weights_memory_links.by_rank(seed, 0) for seed in seeds]

    def trained_on(model) -> bool:
        share = {name: [x / job.RANKS] for name, [x] in on_ranks.share_of_weights(model, seeds[-1]).items()}
        reply = {"seeds": seeds, "proof": on_ranks.proof(model, seeds[-1]), "share": share}
        return judge_tokens_per_s._trained_on(Lap(seeds[-1], [reply] * job.RANKS, 0.0))

    model, begun = (judge_weights_memory_links.train_alone(each, 0) for each in (steps, []))
    assert trained_on(model)
    with torch.no_grad():
        model.blocks[2].attention.value.weight.copy_(begun.blocks[2].attention.value.weight)
    assert not trained_on(model)


@pytest.mark.parametrize("shards", (1, 4, 8))
def test_the_ranks_shares_of_the_weights_add_up_to_the_whole(shards):
    def share():
        model = job.build_model(job.job_of(job.draw(0)["2x4"] | on_ranks.NO_TIME), 0)
        whole = on_ranks.share_of_weights(model, 5)
        mesh = init_device_mesh("cpu", (8 // shards, shards), mesh_dim_names=("copies", "shards"))
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=mesh["shards"] if shards == 8 else mesh)
        return whole, on_ranks.share_of_weights(model, 5)

    of_ranks = launch(share, 8, device="cpu")
    for name, [due] in of_ranks[0][0].items():
        assert sum(found[name][0] for _, found in of_ranks) == pytest.approx(8 * due, abs=1e-4)


def test_what_is_shown_is_what_is_run():
    notebook = read_lab("labs", LAB)
    given = ("parameters", "imports", "budgets", "job", "model")
    notebook.cells = [cell for cell in notebook.cells if cell.metadata.nbgrader.grade_id in given]
    shown = run_cells(notebook)
    assert [f.name for f in fields(shown["Job"])] == [f.name for f in fields(job.Job)]
    assert shown["CONFIG"] == job.MODEL
    facts = job.draw(0)["4x2"]
    assert vars(shown["draw"]("4x2", 0)) == vars(job.job_of(facts))
    models = shown["build_model"](job.job_of(facts), 1), on_ranks.build_model(job.job_of(facts), 1)
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        assert a.equal(b)


def test_facts_stay_within_what_is_published():
    def within(value, spans):
        return any(0.99 * low <= value <= 1.01 * high for low, high in spans)

    for seed in range(20):
        for cluster, facts in job.draw(seed).items():
            budget, launch_s, sequence_s = job.BUDGETS[cluster], facts["launch_s"], facts["sequence_s"]
            between = job.job_of(facts).network.between.bandwidth_bytes_per_s
            assert within(facts["memory_bytes"] / 1e6, budget["memory_MB"])
            assert within(1e3 * sequence_s, budget["sequence_ms"])
            assert within(launch_s / sequence_s, [(0.95 * a, 1.05 * b) for a, b in budget["launch_over_sequence"]])
            assert within(between * sequence_s / 1e3, budget["link_kB_per_sequence"])


def test_no_strategy_takes_less_time_than_the_least():
    """By arithmetic: where the least is the network's, the fastest comes within some percent of it."""
    for name, facts in [*job.draw(seed=5).items(), *job.draw(seed=8).items()]:
        where = job.job_of(facts)
        fastest_s = min(fastest_strategy.step_s(where, c) for c in fastest_strategy.choices(where))
        assert fastest_s >= max(judge_tokens_per_s._least_s(where)), name


# The judges alone, on what ranks might reply

CLUSTERS = tuple(job.BUDGETS)


@pytest.fixture(scope="module")
def weights():
    """The start, and the right ones after the judge's steps."""
    return tuple(
        judge_weights_memory_links._trained(1, *judge_weights_memory_links._ONE_PROCESS[name])
        for name in ("nothing", "right")
    )


def judged_account(check: str, weights, cluster="4x2", rank=5, moved=1.0, peak=0, sent=1.0, left=False):
    """On one cluster one rank's weights move so many times as far, it holds so many bytes more than its card has, and
    all ranks put so many times the line's bytes on their cards."""
    start, right = weights
    by_network = {facts["network"]: (name, facts) for name, facts in job.draw(1).items()}

    def replies(facts, **_):
        name, facts = by_network[facts["network"]]
        spoilt = name == cluster

        def reply(r):
            mine = start + (moved if spoilt and r == rank else 1.0) * (right - start)
            return {
                "weights": {"all": mine.tolist()},
                "not_whole": [],
                "gradients_left": ["", "norm.weight" if left and spoilt and r == rank else "", ""],
                "peak_bytes": facts["memory_bytes"] + (peak if spoilt and r == rank else -1),
                "peak": {"parameters": 10**6},
                "where": "backward",
                "link_bytes": 1000.0 * (sent if spoilt else 1.0),
                "collectives": {"all_gather": 3},
            }

        return [reply(r) for r in range(job.RANKS)]

    line = [{"link_bytes": 1000.0}] * job.RANKS
    return judge_replies(check, {"record_step": replies}, {"line": line})


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_each_cluster_is_a_third_of_the_points_and_one_rank_is_enough_to_lose_it(cluster, weights, monkeypatch):
    known = {name: judge_weights_memory_links._ONE_PROCESS[name] for name in ("nothing", "right")}
    monkeypatch.setattr(
        judge_weights_memory_links, "_ONE_PROCESS", known
    )  # each of them is trained; mistakes have samples
    ask = {name: partial(judged_account, f"lab8.{name}", weights, cluster) for name in ("same", "cap", "links")}
    assert ask["same"](moved=1.000019).points == ask["cap"](peak=0).points == 3
    assert ask["links"](sent=1.149).points == ask["links"](sent=0.5).points == ask["links"](left=True).points == 3
    said = {
        f"on {cluster} the weights are nearly right": ask["same"](moved=1.000021),
        f"on {cluster} the ranks end with different weights: rank 5's": ask["same"](moved=0.5),
        f"on {cluster} gradients of step 2 (norm.weight) are left": ask["same"](left=True),
        f"on {cluster} a card is out of memory in backward": ask["cap"](peak=1),
        f"on {cluster} the weights are wrong, so what a step holds": ask["cap"](moved=1.1),
        f"on {cluster} 1.16 times the reference line's bytes": ask["links"](sent=1.16),
        f"on {cluster} the weights are wrong, so what a step sends": ask["links"](moved=1.1),
    }
    assert {words: v.text() for words, v in said.items() if v.points != 2 or words not in v.cause} == {}


def lap_of(**changed):
    """A lap of a right step on 2x4, whose ranks' replies have what is given here instead."""
    facts = job.draw(1)["2x4"]
    busy_s, _ = judge_tokens_per_s._least_s(job.job_of(facts))
    judged = {"computations": 16, "reduced_bytes": 1000}
    reply = judged | {"busy_s": 1.1 * busy_s, "seeds": [7], "proof": [1.0]}
    return facts, [judged] * job.RANKS, Lap(7, [reply | changed] * job.RANKS, changed.get("seconds", 100.0))


@pytest.mark.parametrize(
    "changed, words",
    [
        ({}, ""),
        ({"seconds": 1e-3}, "a timed step took 0.00 s: computing takes"),
        ({"busy_s": 0.0}, "a card computed for 0.00 s in a timed step"),
        ({"computations": 32}, "had 256 forwards and backwards, and the step that the other checks saw had 128"),
        ({"reduced_bytes": 0}, "had 0 bytes of gradients over the cluster's network"),
        ({"proof": [2.0]}, "the weights after a timed step"),
    ],
)
def test_what_a_timed_step_lacks_is_said(changed, words, monkeypatch):
    monkeypatch.setattr(judge_tokens_per_s, "_trained_on", lambda lap: lap.replies[0]["proof"] == [1.0])
    facts, judged, lap = lap_of(**changed)
    work = judge_tokens_per_s._Work(facts, judged)
    assert work(lap) == (not words)
    assert words in work.lacks


@pytest.mark.parametrize("configure, words", [(None, "hand in configure"), (lambda model, job: 3, "and returned 3")])
def test_what_is_no_step_is_said_in_one_line(configure, words):
    with pytest.raises(TypeError, match=words) as raised:
        on_ranks.configured(configure, None, None)
    assert "\n" not in str(raised.value)


@pytest.mark.night
def test_copies_between_nodes_send_more_than_the_line():
    """A mesh whose dimensions are swapped, shards between nodes, is seen by its bytes."""
    seed = next(i for i in range(100) if fastest_strategy.best(job.job_of(job.draw(i)["2x4"])).shards == 4)
    facts = job.draw(seed)["2x4"]

    def swapped(model, job):
        def mesh(device, shape, mesh_dim_names):
            ranks = torch.arange(8).view(shape[1], shape[0]).T.contiguous()
            return DeviceMesh(device, ranks, mesh_dim_names=mesh_dim_names)

        with patch.object(fastest_strategy_program, "init_device_mesh", mesh):
            return fastest_strategy_program.follow(model, job)

    def bytes_of(implementation):
        return launch(on_ranks.line, job.RANKS, implementation, facts, device="cpu")

    due, found = (
        judge_weights_memory_links._per_node(bytes_of(i), facts) for i in (fastest_strategy_program.follow, swapped)
    )
    assert found > judge_weights_memory_links.LINK_RATIO * due
