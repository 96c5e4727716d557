"""The check of lesson 10a's exercise: it accepts the lesson's answer, and says what is wrong with wrong ones."""

import pytest
import torch.distributed as dist
from deadlines import deadline_s

from shardcourse.exercises.mesh_by_host import problems


def answer(mesh, host):
    mine = dist.get_process_group_ranks(mesh.get_group("shard"))
    reports = [None] * dist.get_world_size()
    dist.all_gather_object(reports, (host, mine))
    on_host = {}
    for rank, (name, _) in enumerate(reports):
        on_host.setdefault(name, set()).add(rank)
    for _, group in reports:
        hosts = {reports[rank][0] for rank in group}
        whole = set().union(*(on_host[name] for name in hosts))
        if len(hosts) > 1 and whole != set(group):
            raise RuntimeError(f"the shard group {group} mixes the hosts {sorted(hosts)}")


def trusts_rank_numbers(mesh, host):
    groups = [None] * dist.get_world_size()
    dist.all_gather_object(groups, dist.get_process_group_ranks(mesh.get_group("shard")))
    for group in groups:
        if len(group) == 2 and group[0] // 2 != group[1] // 2:
            raise RuntimeError(f"{group} mixes nodes")


def refuses_every_group_of_two_hosts(mesh, host):
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, host)
    for row in mesh.mesh.tolist():
        if len({hosts[rank] for rank in row}) > 1:
            raise RuntimeError(f"{row} mixes nodes")


def looks_at_its_own_group_only(mesh, host):
    mine = dist.get_process_group_ranks(mesh.get_group("shard"))
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, host)
    if len(mine) == 2 and hosts[mine[0]] != hosts[mine[1]]:
        raise RuntimeError(f"{mine} mixes nodes")


@pytest.mark.parametrize(
    ("check_mesh", "said"),
    [
        (answer, ""),
        (trusts_rank_numbers, "ranks dealt to hosts in turn: rank 0 raises no RuntimeError"),
        (refuses_every_group_of_two_hosts, "one copy over all nodes: it is a good mesh, but it raises"),
        (looks_at_its_own_group_only, "does not name the group [0, 2]"),
    ],
)
def test_the_check_says_what_is_wrong(check_mesh, said):
    found = problems(check_mesh, timeout_s=deadline_s(5))
    assert said in found[0] if said else found == []
