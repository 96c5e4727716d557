"""The network against closed forms worked out by hand: what each collective costs, on which links, in which words."""

from collections import Counter
from dataclasses import replace
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.model import preset
from shardsim.algorithms import ALGORITHMS, channels, double_tree
from shardsim.link import Link
from shardsim.machines import MACHINES
from shardsim.network import BETWEEN_LATENCY_S, INSIDE_LATENCY_S, Network
from shardsim.time_dilation import flops_per_token, imitate

S = 7000  # bytes
PORT, CARD = Link(1000.0, 0.25), Link(100.0, 2.0)


def one_node(n: int, **changes) -> Network:
    return Network(1, n, PORT, **changes)


def cluster(nodes: int, k: int, **changes) -> Network:
    return Network(nodes, k, PORT, CARD, **changes)


# ------------------------------------------------------------------------------------------------- one node: textbook


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_ring_formulas(n):
    """Thakur, Rabenseifner & Gropp 2005: steps of the ring times latency, and bytes a rank sends over bandwidth."""
    network, ranks = one_node(n), range(n)
    gather = (n - 1) * 0.25 + (n - 1) / n * 7
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert network.seconds(kind, S, ranks) == pytest.approx(gather)
    assert network.seconds("all_reduce", S, ranks) == pytest.approx(2 * gather)
    assert network.seconds("barrier", 0, ranks) == pytest.approx(2 * (n - 1) * 0.25)
    for kind in ("broadcast", "reduce"):
        assert network.seconds(kind, S, ranks) == pytest.approx((n - 1) * 0.25 + (n > 1) * 7)
    for kind in ("gather", "scatter"):  # all of it but its own share passes the root's port
        assert network.seconds(kind, S, ranks) == pytest.approx((n > 1) * 0.25 + (n - 1) / n * 7)


@pytest.mark.parametrize("n", [2, 4, 7, 8])
def test_tree_formulas(n):
    """Sanders, Speck & Traeff 2009: the depth twice, and all bytes up and down; few hops, but no fewer bytes.

    With two ranks one is the root of each tree, and each sends half of the bytes up one tree and half down the other.
    """
    tree, ring = one_node(n, algorithm="tree"), one_node(n)
    depth = ceil(log2(n)) * 0.25
    assert tree.seconds("all_reduce", S, range(n)) == pytest.approx(2 * depth + (7 if n == 2 else 2 * 7))
    for kind in ("all_gather", "broadcast"):
        assert tree.seconds(kind, S, range(n)) == ring.seconds(kind, S, range(n)), "only an all_reduce has trees"
    assert tree.seconds("all_reduce", 0, range(n)) <= ring.seconds("all_reduce", 0, range(n))


@pytest.mark.parametrize("n", range(1, 40))
def test_in_two_trees_together_a_rank_has_two_children_at_most(n):
    trees = double_tree(n)
    children = [Counter(parent for _, parent in tree) for tree in trees]
    for tree in trees:
        assert sorted({rank for hop in tree for rank in hop} | {0}) == list(range(n)) and len(tree) == n - 1
        assert len({child for child, _ in tree}) == n - 1, "one parent each, but for the root"
    assert all(sum(c[rank] for c in children) <= 2 for rank in range(n)), "so no rank sends more than S up and S down"


@pytest.mark.parametrize("n", [2, 4, 8])
def test_halving_and_doubling(n):
    """Thakur, Rabenseifner & Gropp 2005, section 4.5: 2 log2 N messages, and no more bytes than a ring."""
    network, ring = one_node(n, algorithm="halving-doubling"), one_node(n)
    assert network.seconds("all_reduce", S, range(n)) == pytest.approx(2 * log2(n) * 0.25 + 2 * (n - 1) / n * 7)
    assert network.bytes_by_link("all_reduce", S, range(n)) == pytest.approx(
        ring.bytes_by_link("all_reduce", S, range(n))
    )


def test_halving_needs_a_power_of_two():
    assert one_node(6, algorithm="halving-doubling").seconds("all_reduce", S, range(6)) == one_node(6).seconds(
        "all_reduce", S, range(6)
    )


def test_halving_and_doubling_sends_its_largest_messages_between_nodes():
    """A ring leaves each node once, with every byte. Here every rank leaves its node, with half of the bytes."""
    network, ring = cluster(2, 4, algorithm="halving-doubling"), cluster(2, 4)
    assert network.bytes_by_link("all_reduce", S, range(8))["card", (0, 0), "out"] == pytest.approx(2 * 4 * S / 2)
    assert ring.bytes_by_link("all_reduce", S, range(8))["card", (0, 0), "out"] == pytest.approx(2 * 7 / 8 * S)


def test_send():
    assert one_node(2).seconds("send", S, (0, 1)) == pytest.approx(0.25 + 7)
    assert cluster(2, 2).seconds("send", S, (1, 2)) == pytest.approx(2 + 70)


# ------------------------------------------------------------------------------------------------------------- clusters


def test_a_ring_over_nodes_is_as_slow_as_what_leaves_a_node():
    """4 nodes of 2: of 7 hops 3 leave a node. 7/8 of the bytes leave each node, over one card or over both."""
    hops, leave = 4 * 0.25 + 3 * 2.0, 7 / 8 * S
    shared = cluster(4, 2).seconds("all_gather", S, range(8))
    assert shared == pytest.approx(hops + leave / 100)
    own = cluster(4, 2, nics_per_node=2).seconds("all_gather", S, range(8))
    assert own == pytest.approx(hops + leave / 2 / 100)
    assert cluster(4, 2).seconds("all_reduce", S, range(8)) == pytest.approx(2 * shared)


def test_hierarchical():
    """Inside, then between a k-th of the bytes for each rank, then inside."""
    network = cluster(4, 2, algorithm="hierarchical", nics_per_node=2)
    inside = 1 * (0.25 + S / 2 / 1000)
    between = 3 * (2 + S / 2 / 4 / 100)
    assert network.seconds("all_reduce", S, range(8)) == pytest.approx(2 * inside + 2 * between)
    assert network.seconds("all_gather", S, range(8)) == pytest.approx(inside + between)
    shared = replace(network, nics_per_node=1)  # both ranks' messages pass the one card
    assert shared.seconds("all_gather", S, range(8)) == pytest.approx(inside + 3 * (2 + S / 4 / 100))
    assert {name[0] for name in network.links("all_gather", range(8))} == {"port", "card"}
    ring = replace(network, algorithm="ring")
    assert network.seconds("all_reduce", 0, range(8)) < ring.seconds("all_reduce", 0, range(8)), "fewer hops inside"


def test_a_tree_over_nodes():
    """Inside a node it is a chain. Of two nodes each sends half: S in all, and not 2 S."""
    network = cluster(4, 4, algorithm="tree", nics_per_node=4)
    assert network.seconds("all_reduce", S, range(16)) == pytest.approx(2 * (3 * 0.25 + 2 * 2.0) + 2 * S / 4 / 100)
    two = cluster(2, 4, algorithm="tree", nics_per_node=4)
    assert two.seconds("all_reduce", S, range(8)) == pytest.approx(2 * (3 * 0.25 + 1 * 2.0) + S / 4 / 100)
    many, ring = cluster(32, 2, algorithm="tree"), cluster(32, 2)
    assert many.seconds("all_reduce", 0, range(64)) < 0.2 * ring.seconds("all_reduce", 0, range(64)), "few hops"


def test_a_hybrid_groups_links():
    """Sharding groups stay inside their node; replicas meet on the cards only."""
    network = cluster(2, 2)
    assert {name[0] for name in network.links("all_gather", (0, 1))} == {"port"}
    assert {name[0] for name in network.links("all_reduce", (0, 2))} == {"card"}
    assert not network.links("all_gather", (0, 1)) & network.links("all_gather", (2, 3))
    assert network.links("all_reduce", (0, 2)) & network.links("all_reduce", (1, 3)), "they share the node's card"
    own = replace(network, nics_per_node=2)
    assert not own.links("all_reduce", (0, 2)) & own.links("all_reduce", (1, 3))


def test_links_are_full_duplex():
    network = one_node(2)
    assert not network.links("send", (0, 1)) & network.links("send", (1, 0))


def test_each_channel_leaves_a_node_at_another_rank():
    orders = channels([[0, 1, 2], [3, 4, 5]])
    assert orders == [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], [2, 0, 1, 5, 3, 4]]
    assert channels([[0, 1, 2]]) == [[0, 1, 2]], "within a node one ring uses every port"


def test_a_straggler_slows_whoever_needs_it():
    network = cluster(2, 2, nics_per_node=2, straggler=(3, 4.0))
    plain = replace(network, straggler=None)
    assert network.seconds("all_gather", S, (2, 3)) == pytest.approx(4 * plain.seconds("all_gather", S, (2, 3)))
    assert network.seconds("all_gather", S, (0, 1)) == plain.seconds("all_gather", S, (0, 1))
    assert network.seconds("all_reduce", S, (1, 3)) == pytest.approx(4 * plain.seconds("all_reduce", S, (1, 3)))
    assert network.seconds("all_reduce", S, (0, 2)) == plain.seconds("all_reduce", S, (0, 2))


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.sampled_from(ALGORITHMS))


@given(shapes, st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), st.integers(0, 10**9))
def test_no_algorithm_beats_the_bound(shape, kind, n_bytes):
    """Each rank must receive what it lacks: (N-1)/N of the bytes, twice for an all_reduce; so must each node."""
    nodes, k, own, algorithm = shape
    network = cluster(nodes, k, algorithm=algorithm, nics_per_node=k if own else 1)
    n, times = nodes * k, 2 if kind == "all_reduce" else 1
    seconds = network.seconds(kind, n_bytes, range(n))
    into_node = (nodes - 1) / nodes * n_bytes / network.nics_per_node / 100
    into_rank = (k - 1) / k * n_bytes / n / 1000  # at least its own node's shares
    assert seconds >= times * max(into_node, into_rank) * (1 - 1e-9)
    assert seconds >= (0.25 if n > 1 else 0)


@given(shapes, st.integers(1, 10**6))
def test_every_rank_of_a_ring_sends_what_the_textbook_says(shape, n_bytes):
    nodes, k, own, _ = shape
    network, n = cluster(nodes, k, nics_per_node=k if own else 1), nodes * k
    sent = network.bytes_by_link("all_gather", n_bytes, range(n))
    out = sum(value for (_, _, way), value in sent.items() if way == "out")
    assert out == pytest.approx((n - 1) * n_bytes), "N ranks send (N-1)/N of the bytes each"
    between = sum(value for (kind, _, way), value in sent.items() if way == "out" and kind == "card")
    assert between == pytest.approx(nodes * (n - 1) / n * n_bytes if nodes > 1 else 0), (
        "each node's own cut of the ring"
    )


# ------------------------------------------------------------------------------------------------------------- in words


@pytest.mark.parametrize(
    ("words", "n", "network"),
    [
        ("1 Gb/s, 50 us", 4, Network(1, 4, Link(125e6, 50e-6))),
        (
            "2x4 nodes, 300 GB/s inside, 50 GB/s between",
            8,
            Network(2, 4, Link(300e9, INSIDE_LATENCY_S), Link(50e9, BETWEEN_LATENCY_S)),
        ),
        (
            "1 GB/s 20us inside, 100 MB/s 0.1 ms between a rank, 2 x 2 nodes",
            4,
            Network(2, 2, Link(1e9, 20e-6), Link(100e6, 1e-4), nics_per_node=2),
        ),
        ("1 Gb/s, 50 us, tree", 4, Network(1, 4, Link(125e6, 50e-6), algorithm="tree")),
        (
            "1 Gb/s, 50 us, jitter 10%, rank 3 is 2x slower",
            4,
            Network(1, 4, Link(125e6, 50e-6), jitter=0.1, straggler=(3, 2.0)),
        ),
        ("dgx-h100", 4, Network(1, 4, Link(450e9, 3.4e-6), nics_per_node=4)),
        ("dgx-h100", 16, Network(2, 8, Link(450e9, 3.4e-6), Link(50e9, 14e-6), nics_per_node=8)),
        ("cloud-25gbe, 2x2 nodes", 4, Network(2, 2, Link(25e9, 5.7e-6), Link(3.125e9, 44e-6))),
        ("infinitely fast", 3, Network(1, 3, Link(float("inf"), 0.0))),
    ],
)
def test_words(words, n, network):
    assert Network.parse(words, n) == network


@pytest.mark.parametrize(
    "words",
    ["", "fast", "1 Gb/s", "50 us", "2x2 nodes", "2x2 nodes, 1 GB/s between", "1 gb/s, 5 us", "-1 Gb/s, 5 us",
     "dgx-h900", "1 Gb/s 5 us", "1 Gb/s, 5 h", "1 Gb/s, 5 us, jitter 10", "1 Gb/s, 5 us, star"],
)  # fmt: skip
def test_words_that_say_no_network_are_refused_with_an_example(words):
    with pytest.raises(ValueError, match="as in '1 Gb/s, 50 us'|write e.g. '1 Gb/s, 50 us'"):
        Network.parse(words, 4)


def test_a_network_for_another_world_size_is_refused():
    with pytest.raises(ValueError, match="has 2x4 ranks, and the job has 4"):
        Network.parse("2x4 nodes, 300 GB/s inside, 50 GB/s between", 4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"between": None}, "no link between them"),
        ({"nics_per_node": 3}, "can't share 3 cards"),
        ({"algorithm": "star"}, "no algorithm 'star'; there are ring, tree, halving"),
        ({"jitter": -0.1}, "0 or more"),
        ({"straggler": (4, 2.0)}, "one of ranks 0 to 3"),
        ({"straggler": (1, 0.0)}, "more than 0 times"),
    ],
)
def test_a_network_that_can_not_be_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(cluster(2, 2), **change)


def test_a_node_of_a_machine_has_its_size():
    assert Network.parse("dgx-h100, 2x8 nodes", 16).ranks_per_node == 8
    with pytest.raises(ValueError, match="8 GPUs in a node, not 16"):
        Network.parse("dgx-h100, 2x16 nodes", 32)


# -------------------------------------------------------------------------------------------------------- scaling law


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("step_s", [0.05, 0.4])
def test_every_message_takes_the_same_part_of_the_step_as_on_the_machine(name, step_s):
    model, stand_in = preset("1B"), preset("3M")
    real = Network.parse(f"{name}, 2x2 nodes", 4)
    i = imitate(name, model, tokens=4096, seq_len=2048, stand_in=stand_in, step_s=step_s, nodes=2, ranks_per_node=2)
    for kind in ("all_reduce", "all_gather", "barrier"):
        for part in (0.001, 0.1, 1.0):  # of the model's bytes
            there = real.seconds(kind, part * 2 * model.n_params, range(4)) / i.real_step_s
            here = i.network.seconds(kind, part * 4 * stand_in.n_params, range(4)) / step_s
            assert here == pytest.approx(there)
    assert stand_in.n_layers * (i.forward_s + i.backward_s) == pytest.approx(step_s)
    assert i.real_s(step_s) == pytest.approx(i.real_step_s)
    assert i.real_bytes(4 * stand_in.n_params) == pytest.approx(2 * model.n_params)


def test_a_node_has_no_more_gpus_than_the_machine():
    with pytest.raises(ValueError, match="4 GPUs in a node, not 8"):
        imitate(
            "pcie-box", preset("1B"), tokens=1, seq_len=1, stand_in=preset("1M"), step_s=1, nodes=1, ranks_per_node=8
        )


def test_flops_of_llama_3_8b():
    """About 6 a parameter without attention's own part: 8.03 G parameters less the table of 0.53 G."""
    assert flops_per_token(preset("8B"), 0) == pytest.approx(6 * 7.5e9, rel=0.01)
    assert flops_per_token(preset("1B"), 0) == 6 * preset("1B").n_params, "tied: the table is the output's matrix"
