"""scikit-learn's own suite. No check may fail: it excuses none for its Lasso and ElasticNet either."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskstrads import ElasticNet, Lasso


def test_scikit_learn_excuses_nothing_for_its_own():
    generator = pytest.importorskip("sklearn.utils._test_common.instance_generator")
    excused = {
        estimator.__name__: checks for estimator, checks in generator.PER_ESTIMATOR_XFAIL_CHECKS.items()
    }
    assert not excused.get("Lasso")
    assert not excused.get("ElasticNet")


@parametrize_with_checks(
    [Lasso(), ElasticNet(), Lasso(n_shards=3, update="parallel"), ElasticNet(n_shards=2)]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
