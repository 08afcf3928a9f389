"""Which of 1000 interactions predict the course of diabetes? Lasso on scikit-learn's bundled data.

python examples/lasso_diabetes.py [picture.png]

442 patients, 10 measurements, all their products up to degree 4: wide data (p > n), so daskstrads splits
the columns over its ranks. Prints a table over alpha, checks the best fit against scikit-learn's answer,
and draws what was found.
"""

import sys
import time

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso as PeerLasso
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from daskstrads import Lasso


def main(picture: str) -> None:
    """Fit, compare, draw."""
    X, y, names, train, test = interactions()
    alphas = np.geomspace(30, 0.3, 15)
    start = time.perf_counter()
    Lasso(alpha=alphas[0]).fit(X[train], y[train])  # loads its compiled kernels, or compiles them once
    print(f"first fit, kernels compiled or loaded: {time.perf_counter() - start:.1f} s")
    print(f"{len(train)} patients to fit, {len(test)} held out, {X.shape[1]} features")
    print(f"{'alpha':>8} {'features':>9} {'held-out R2':>12} {'gap / P(0)':>11} {'passes':>7} {'ms':>7}")
    fits = []
    for alpha in alphas:
        start = time.perf_counter()
        model = Lasso(alpha=alpha, tol=1e-6).fit(X[train], y[train])
        seconds = time.perf_counter() - start
        r2 = model.score(X[test], y[test])
        fits.append((model, r2))
        relative = model.dual_gap_ / (0.5 * np.var(y[train]))
        used = np.count_nonzero(model.coef_)
        print(f"{alpha:8.2f} {used:9d} {r2:12.3f} {relative:11.1e} {model.n_iter_:7d} {1e3 * seconds:7.1f}")

    best, r2 = max(fits, key=lambda fit: fit[1])
    peer = PeerLasso(alpha=best.alpha, tol=1e-8, max_iter=100_000).fit(X[train], y[train])
    print(f"\nbest alpha {best.alpha:.2f}: held-out R2 {r2:.3f}")
    for j in np.argsort(-np.abs(best.coef_))[:8]:
        print(f"  {best.coef_[j]:+7.2f}  {names[j]}")
    apart = np.abs(best.predict(X) - peer.predict(X)).max()
    print(f"predictions differ from scikit-learn's by at most {apart:.1e} (y has spread {y.std():.0f})")
    draw(picture, alphas, fits, best, names)
    print(f"picture: {picture}")


def interactions():
    """Standardised products of the measurements up to degree 4, their names, and the two halves' rows."""
    data = load_diabetes()
    products = make_pipeline(StandardScaler(), PolynomialFeatures(4, include_bias=False), StandardScaler())
    X = products.fit_transform(data.data)
    names = products[1].get_feature_names_out(data.feature_names)
    train, test = train_test_split(np.arange(len(X)), test_size=0.3, random_state=0)
    return X, data.target, names, train, test


def draw(picture, alphas, fits, best, names) -> None:
    """Held-out R2 and support over alpha; the largest coefficients of the best fit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    left.semilogx(alphas, [r2 for _, r2 in fits], "o-", color="tab:blue")
    left.axvline(best.alpha, color="grey", linestyle=":")
    left.set(xlabel="alpha", ylabel="held-out $R^2$", title="How much to regularise")
    left.invert_xaxis()
    support = left.twinx()
    support.semilogx(alphas, [np.count_nonzero(fit.coef_) for fit, _ in fits], "s--", color="tab:orange")
    support.set_ylabel("features used", color="tab:orange")
    largest = np.argsort(-np.abs(best.coef_))[:12][::-1]
    right.barh([names[j] for j in largest], best.coef_[largest], color="tab:blue")
    right.set(title=f"What it found at alpha = {best.alpha:.2f}", xlabel="coefficient (standardised)")
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lasso_diabetes.png")
