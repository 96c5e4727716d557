"""The closed forms: cases by hand, and the same times as the simulated network, which sends every message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim import closed_forms
from shardsim.closed_forms import Cluster
from shardsim.link import Link
from shardsim.network import Network

ONE_NODE = Cluster(port_latency_s=0.5, port_bandwidth=4.0, ranks_per_node=4)
TWO_NODES = Cluster(0.5, 4.0, 2, 2, card_latency_s=2.0, card_bandwidth=1.0)


@pytest.mark.parametrize(
    ("kind", "algorithm", "on_one_node", "on_two_nodes"),
    [
        # 3 rounds of 2 bytes on a port; 3 of 2 bytes on each node's card
        ("all_gather", "ring", 3 * (0.5 + 2 / 4), 3 * (2 + 2 / 1)),
        ("reduce_scatter", "ring", 3 * (0.5 + 2 / 4), 3 * (2 + 2 / 1)),
        ("all_reduce", "ring", 6 * (0.5 + 2 / 4), 6 * (2 + 2 / 1)),
        # one round of 4 bytes on each card, one of 4 bytes on each port
        ("all_gather", "hierarchical", 3 * (0.5 + 2 / 4), (2 + 4 / 1) + (0.5 + 4 / 4)),
        ("all_reduce", "hierarchical", 6 * (0.5 + 2 / 4), 2 * (2 + 4 / 1) + 2 * (0.5 + 4 / 4)),
        # 4 hops, or 2 inside and 2 between, and 16 bytes
        ("all_reduce", "tree", 4 * 0.5 + 16 / 4, 2 * 0.5 + 2 * 2 + 16 / 1),
        ("broadcast", "ring", 3 * 0.5 + 8 / 4, 2 * 0.5 + 2 + 8 / 1),
        ("broadcast", "tree", 2 * 0.5 + 8 / 4, 0.5 + 2 + 8 / 1),
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
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (4, 4)]),
    st.booleans(),
    st.sampled_from(("ring", "tree", "hierarchical")),
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
