"""tree_sum of what the workers hold: the bits of tree_sum, and nothing through the client."""

import numpy as np
import pytest
from dask import delayed

from daskstrads.sparse_reduce import Stream, tree_sum


def values(kind, size):
    rng = np.random.default_rng(size)
    arrays = [rng.standard_normal(300) * 10.0 ** rng.integers(-8, 8) for _ in range(size)]
    if kind == "streams":
        return [Stream.from_dense(np.where(rng.random(300) < 0.05, array, 0.0)) for array in arrays]
    return arrays if kind == "arrays" else [array[0] for array in arrays]


def dense(total):
    return total.dense() if isinstance(total, Stream) else total


@pytest.mark.parametrize("kind", ["arrays", "streams", "numbers"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_graph_has_the_bits_of_the_sum(client, size, kind):
    given = values(kind, size)
    futures = [client.scatter(value, hash=False) for value in given]
    total = tree_sum(futures)
    np.testing.assert_array_equal(dense(total.result(timeout=30)), dense(tree_sum(given)))
    lazy = tree_sum([delayed(value) for value in given])
    np.testing.assert_array_equal(dense(lazy.compute()), dense(tree_sum(given)))


def test_lazy_and_present_values_do_not_mix(client):
    with pytest.raises(TypeError, match="not both"):
        tree_sum([delayed(1.0), 2.0])


def test_values_that_differ_are_an_error(client):
    with pytest.raises(ValueError, match="differ"):
        tree_sum([client.scatter(np.zeros(3)), client.scatter(np.zeros(4))]).result(timeout=30)
