"""The cost model that chooses an algorithm: what it must say whatever its constants are."""

import math

import numpy as np
import pytest

from daskstrads.sparse_reduce.selector import (
    IN_ORDER,
    Link,
    Seen,
    choose,
    cost,
    crowd,
    union,
    wants_compression,
)

SLOW, GIGABIT, LOOPBACK = Link(3e-4, 8e-8), Link(2e-4, 8e-9), Link(1e-4, 3e-10)
ALL = (*IN_ORDER, "dense_split", "ring", "dense")
N = 1 << 20


@pytest.mark.parametrize("density", [1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("positions", [N, N // 10])
def test_the_union_is_that_of_random_supports(density, positions):
    rng = np.random.default_rng(0)
    k = int(density * positions)
    held = set()
    for ranks in range(1, 9):
        held |= {*rng.choice(positions, k, replace=False).tolist()}
        assert union(ranks, k, positions) == pytest.approx(len(held), rel=0.03)


@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_the_crowd_explains_the_union(ranks):
    for k, positions in (1000, 3000), (1000, 10**6), (5, 5):
        total = union(ranks, k, positions)
        seen = Seen(ranks * k, round(total))
        assert union(ranks, k, crowd(ranks, seen, N)) == pytest.approx(total, rel=0.02)


def test_supports_that_have_nothing_in_common_and_those_that_are_the_same():
    assert math.isinf(crowd(8, Seen(8000, 8000), N))
    assert union(8, 1000, math.inf) == 8000
    assert union(8, 1000, crowd(8, Seen(8000, 1000), N)) == pytest.approx(1000, rel=0.01)
    assert crowd(8, Seen(0, 0), N) == N
    assert union(8, 0, N) == 0


def test_costs_grow_with_what_has_to_travel():
    for name in ALL:
        for link in SLOW, GIGABIT, LOOPBACK:
            by_density = [cost(name, 8, N, 4, density * N, N, link) for density in (1e-4, 1e-3, 1e-2, 1e-1)]
            assert by_density == sorted(by_density)
            assert all(np.isfinite(by_density))
            assert by_density[0] > 0
        assert cost(name, 8, N, 4, 1e4, N, SLOW) > cost(name, 8, N, 4, 1e4, N, GIGABIT)
        assert cost(name, 8, N, 4, 1e4, 2e4, SLOW) <= cost(name, 8, N, 4, 1e4, N, SLOW)  # the more in common


def test_the_choice_at_the_ends():
    def chosen(density, link, ranks=8):
        k = int(density * N)
        return choose(ALL, ranks, N, 4, Seen(ranks * k, int(union(ranks, k, N))), link)

    assert chosen(1e-4, SLOW) == "recursive_doubling"  # few messages
    assert chosen(0.2, SLOW) == "split"  # few bytes
    for ranks in range(2, 10):
        for density in (0, 1e-6, 1e-3, 0.5, 1.0):
            for link in SLOW, GIGABIT, LOOPBACK:
                assert chosen(density, link, ranks) in ALL


def test_indices_are_narrowed_on_slow_links_alone():
    assert wants_compression(SLOW, 4)
    assert wants_compression(GIGABIT, 4)
    assert not wants_compression(LOOPBACK, 4)


def test_an_unknown_algorithm():
    with pytest.raises(ValueError, match="no cost is known of 'tree'"):
        cost("tree", 8, N, 4, 10, N, SLOW)
