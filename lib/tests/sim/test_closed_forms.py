"""The closed forms: cases by hand, and the same times as the simulated network, which sends every message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim import closed_forms
from shardsim.algorithms import ALGORITHMS
from shardsim.closed_forms import Cluster, nccl_choices_s, nccl_range_s, nccl_s
from shardsim.link import Link
from shardsim.machines import MACHINES
from shardsim.network import Network

ONE_NODE = Cluster(port_latency_s=0.5, port_bandwidth=4.0, ranks_per_node=4)
TWO_NODES = Cluster(0.5, 4.0, 2, 2, card_latency_s=2.0, card_bandwidth=1.0)


@pytest.mark.parametrize(
    ("kind", "algorithm", "on_one_node", "on_two_nodes"),
    [
        # 3 hops, or 2 inside and 1 between; 6 bytes on a port, or on each node's card
        ("all_gather", "ring", 3 * 0.5 + 6 / 4, 2 * 0.5 + 2 + 6 / 1),
        ("reduce_scatter", "ring", 3 * 0.5 + 6 / 4, 2 * 0.5 + 2 + 6 / 1),
        ("all_reduce", "ring", 6 * 0.5 + 12 / 4, 4 * 0.5 + 2 * 2 + 12 / 1),
        # one round of 4 bytes on each card, one of 4 bytes on each port
        ("all_gather", "hierarchical", 3 * 0.5 + 6 / 4, (2 + 4 / 1) + (0.5 + 4 / 4)),
        ("all_reduce", "hierarchical", 6 * 0.5 + 12 / 4, 2 * (2 + 4 / 1) + 2 * (0.5 + 4 / 4)),
        # 4 hops and 16 bytes; with two nodes 2 hops inside and 2 between, and 8 bytes
        ("all_reduce", "tree", 4 * 0.5 + 16 / 4, 2 * 0.5 + 2 * 2 + 8 / 1),
        # 4 and 2 bytes, and back; first both ranks of a node exchange with the other node
        ("all_reduce", "halving-doubling", 2 * (0.5 + 4 / 4 + 0.5 + 2 / 4), 2 * (2 + 8 / 1 + 0.5 + 2 / 4)),
        ("broadcast", "chain", 3 * 0.5 + 8 / 4, 2 * 0.5 + 2 + 8 / 1),
        # 1, 2 and 1 of a node's messages leave it
        ("all_to_all", "pairwise", 3 * (0.5 + 2 / 4), (2 + 2 / 1) + (2 + 4 / 1) + (2 + 2 / 1)),
    ],
)
def test_eight_bytes_on_four_ranks_by_hand(kind, algorithm, on_one_node, on_two_nodes):
    cost = getattr(closed_forms, f"{kind}_s")
    assert cost(ONE_NODE, 8, algorithm) == pytest.approx(on_one_node)
    assert cost(TWO_NODES, 8, algorithm) == pytest.approx(on_two_nodes)


def test_replicas_take_turns_at_a_shared_card():
    """Two all_reduces of 4 bytes between two nodes: 2 rounds of 2 bytes each."""
    own_cards = Cluster(0.5, 4.0, 2, 2, card_latency_s=2.0, card_bandwidth=1.0, cards_per_node=2)
    assert closed_forms.replicas_all_reduce_s(own_cards, 4) == pytest.approx(2 * (2 + 2 / 1))
    assert closed_forms.replicas_all_reduce_s(TWO_NODES, 4) == pytest.approx(2 * 2 * (2 + 2 / 1))
    one = Network(2, 2, Link(4.0, 0.5), Link(1.0, 2.0)).seconds("all_reduce", 4, (0, 2))
    assert one == pytest.approx(2 * (2 + 2 / 1)), "each alone, as the simulated network has it"


KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
SECONDS, BYTES_PER_S = st.floats(0, 1), st.floats(1, 1e3)


@given(
    st.tuples(SECONDS, BYTES_PER_S, SECONDS, BYTES_PER_S),
    st.sampled_from([(1, 1), (1, 4), (1, 5), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 4), (6, 1), (8, 2)]),
    st.booleans(),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
)
def test_closed_forms_and_messages_agree(links, shape, own_cards, algorithm, kind, n_bytes):
    (latency, bandwidth, card_latency, card_bandwidth), (nodes, ranks) = links, shape
    cards = ranks if own_cards and nodes > 1 else 1
    between = {"card_latency_s": card_latency, "card_bandwidth": card_bandwidth, "cards_per_node": cards}
    cluster = Cluster(latency, bandwidth, nodes, ranks, **between)
    card = Link(card_bandwidth, card_latency) if nodes > 1 else None
    network = Network(nodes, ranks, Link(bandwidth, latency), card, cards, algorithm)
    predicted = getattr(closed_forms, f"{kind}_s")(cluster, n_bytes, algorithm)
    assert network.seconds(kind, n_bytes, range(nodes * ranks)) == pytest.approx(predicted, rel=1e-12, abs=1e-12)


# -------------------------------------------------------------------------------------------------------------- NCCL's

H100, US = MACHINES["dgx-h100"], 1e-6


def group_of(nodes: int, k: int, on=H100) -> Cluster:
    return Cluster.of(on, nodes, k, k)


@pytest.mark.parametrize(
    ("kind", "choice", "nodes", "k", "us"),
    [  # of nothing: T0 and the hops, as NCCL's tuner counts them
        ("all_gather", ("ring", "LL"), 1, 8, 6.6 + 7 * 0.6),
        ("all_gather", ("ring", "LL128"), 10, 8, 14 + (79 - 9) * 1.9 + 9 * 4),
        ("reduce_scatter", ("ring", "Simple"), 10, 1, 8.4 + 9 * 14),
        ("all_reduce", ("ring", "LL"), 4, 8, 6.6 + (62 - 6) * 0.6 + 6 * 2.7),
        ("all_reduce", ("ring", "Simple"), 4, 8, 1.4 * (8.4 + 56 * 3.4 + 6 * 14)),
        ("all_reduce", ("tree", "LL"), 4, 8, 6.8 + 2 * (7 * 0.6 + 2 * 5)),
        ("all_reduce", ("nvls", "Simple"), 1, 8, 23),
        ("all_reduce", ("nvls", "Simple"), 4, 8, 23 + 2 * 2 * 14),
    ],
)
def test_latencies_are_counted_as_nccl_counts_them(kind, choice, nodes, k, us):
    assert nccl_choices_s(group_of(nodes, k), kind, 0)[choice] == pytest.approx(us * US)


def test_nccl_has_a_tree_between_nodes_only_and_sums_in_the_switch_from_hopper_on():
    def algorithms(c: Cluster, kind: str = "all_reduce") -> set[str]:
        return {algorithm for algorithm, _ in nccl_choices_s(c, kind, 1 << 20)}

    assert algorithms(group_of(1, 8)) == {"ring", "nvls"}
    assert algorithms(group_of(2, 8)) == {"ring", "tree", "nvls"}
    assert algorithms(group_of(2, 8, MACHINES["dgx-a100"])) == {"ring", "tree"}
    assert algorithms(group_of(2, 8), "all_gather") == {"ring"}
    assert algorithms(group_of(2, 1)) == {"ring", "tree"}, "a switch adds up nothing for one rank a node, as in HSDP"


def test_what_nccl_takes_for_small_and_large_messages():
    def best(c: Cluster, n_bytes: int) -> tuple[str, str]:
        choices = nccl_choices_s(c, "all_reduce", n_bytes)
        return min(choices, key=choices.get)

    a100 = group_of(1, 8, MACHINES["dgx-a100"])
    assert [best(a100, n) for n in (1 << 10, 16 << 20, 1 << 30)] == [("ring", p) for p in ("LL", "LL128", "Simple")]
    assert [best(group_of(1, 8), n) for n in (1 << 10, 1 << 30)] == [("ring", "LL"), ("nvls", "Simple")]
    assert best(group_of(64, 8), 1 << 10) == ("tree", "LL"), "few hops"
    assert nccl_s(group_of(1, 1), "all_reduce", 1 << 30) == 0


def test_two_nodes_send_half_of_what_more_nodes_send():
    large = 64 << 30
    two, four = (nccl_choices_s(group_of(n, 4), "all_reduce", large)["tree", "Simple"] for n in (2, 4))
    assert two / four == pytest.approx(0.5, rel=0.02)


def test_a_slower_network_adds_its_latency_to_every_hop_between_nodes():
    """EFA's hop takes 30 us longer than InfiniBand's; a protocol's own part is the same."""
    p5, ib = (nccl_choices_s(group_of(4, 8, MACHINES[name]), "all_reduce", 0) for name in ("aws-p5", "dgx-h100"))
    assert p5["tree", "LL"] - ib["tree", "LL"] == pytest.approx(2 * 2 * 30 * US)
    pcie, nvlink = (nccl_choices_s(group_of(1, 4, MACHINES[name]), "all_reduce", 0) for name in ("aws-g5", "dgx-h100"))
    start, hops = 6.6 * US, 6 * 0.6 * US
    assert nvlink["ring", "LL"] == pytest.approx(start + hops)
    assert pcie["ring", "LL"] == pytest.approx(start + hops * 5.7 / 3.4)


def test_the_range_between_nodes():
    inside, between = group_of(1, 8), group_of(2, 8)
    for c, n_bytes, times in ((between, 8 << 20, 2.5), (between, 64 << 20, 1), (inside, 8 << 20, 1)):
        low, high = nccl_range_s(c, "all_reduce", n_bytes)
        assert low == nccl_s(c, "all_reduce", n_bytes) and high == pytest.approx(times * low)
