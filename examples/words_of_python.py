"""Which words do functions with many branches use? Lasso on the source of Python's own standard library.

python examples/words_of_python.py [picture.png] [--modules N]

Sparse data that every machine has: a row a function, a column a word of its text, comments included; 1 where
the function uses it. Python's keywords are left out, since they would give the answer away. The target is
log2(1 + branches). One model goes from strong to weak penalties by warm starts; the functions of a quarter of
the modules are held out. Prints a table over alpha and the strongest words, checks the best fit against
scikit-learn's answer, and draws what was found.
"""

import argparse
import ast
import keyword
import sysconfig
import time
from copy import copy
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Lasso as PeerLasso
from sklearn.model_selection import GroupShuffleSplit

from daskstrads import Lasso

BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.BoolOp,
    ast.match_case,
)  # fmt: skip
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
DIVISORS = 10, 20, 50, 100, 200, 500, 1000  # of the alpha from which on every coefficient is 0
TOL = 1e-8


def main(picture: str, modules: int | None) -> None:
    """Read, fit, tell, compare, draw."""
    start = time.perf_counter()
    texts, branches, module = functions(modules)
    counter = CountVectorizer(
        token_pattern=r"[A-Za-z_]\w+", lowercase=False, stop_words=keyword.kwlist, min_df=2, binary=True,
        dtype=np.float64,
    )  # fmt: skip
    X, y = counter.fit_transform(texts), np.log2(1 + branches)
    words = counter.get_feature_names_out()
    print(
        f"{len(texts)} functions of {len(set(module))} modules, read in {time.perf_counter() - start:.1f} s"
    )
    train, test = next(GroupShuffleSplit(1, test_size=0.25, random_state=0).split(X, groups=module))
    X_train, y_train, X_test, y_test = (
        X[train].tocsc(),
        y[train],
        X[test],
        y[test],
    )  # CSR would be copied a fit
    print(f"{len(train)} to fit, {len(test)} held out; {len(words)} words, {X.nnz / len(y):.0f} a function")

    fits = path(X_train, y_train, X_test, y_test)
    best, r2 = max(fits, key=lambda fit: fit[1])
    uses = X_train.getnnz(axis=0)
    # What a word explains grows with its spread as well: of rare ones alone there is little to learn.
    spread = np.sqrt(uses * (len(train) - uses)) / len(train)
    order = np.argsort(best.coef_ * spread)
    print(f"\nbest alpha {best.alpha:.2e}: held-out R2 {r2:.3f}")
    tell(best.coef_, words, uses, order)
    check(best.alpha, X_train, y_train)
    draw(picture, fits, best, words, order)
    print(f"picture: {picture}")


def functions(modules: int | None) -> tuple[list[str], np.ndarray, list[str]]:
    """Text, number of branches and module of every function of the standard library, tests left out.

    `modules`: about so many, spread over all of them; None: all.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts)]
    if not files:
        raise SystemExit(f"no source of the standard library below {root}")
    texts, branches, module = [], [], []
    for path in files[:: max(1, len(files) // (modules or len(files)))]:
        try:
            text = path.read_text("utf-8")
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # templates, samples of other versions
            continue
        lines = text.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                texts.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                branches.append(sum(isinstance(inner, BRANCHES) for inner in ast.walk(node)))
                module.append(str(path.relative_to(root)))
    return texts, np.array(branches), module


def path(X_train, y_train, X_test, y_test) -> list[tuple[Lasso, float]]:
    """A fit for each alpha, from the coefficients of the one before, and its held-out R2."""
    strongest = np.abs(X_train.T @ (y_train - y_train.mean())).max() / len(y_train)
    start = time.perf_counter()
    Lasso(alpha=strongest / 2).fit(X_train, y_train)  # loads its compiled kernels, or compiles them once
    print(f"first fit, kernels compiled or loaded: {time.perf_counter() - start:.1f} s\n")
    print(f"{'alpha':>9} {'words':>6} {'held-out R2':>12} {'gap / P(0)':>11} {'passes':>7} {'ms':>6}")
    model = Lasso(tol=TOL, warm_start=True)
    fits = []
    for divisor in DIVISORS:
        start = time.perf_counter()
        model.set_params(alpha=strongest / divisor).fit(X_train, y_train)
        ms = 1e3 * (time.perf_counter() - start)
        r2 = model.score(X_test, y_test)
        fits.append((copy(model), r2))
        used, relative = np.count_nonzero(model.coef_), model.dual_gap_ / (0.5 * np.var(y_train))
        print(f"{model.alpha:9.2e} {used:6d} {r2:12.3f} {relative:11.1e} {model.n_iter_:7d} {ms:6.0f}")
    return fits


def tell(coef, words, uses, order) -> None:
    """The words that explain most, of many branches and of few; `order`: by what they explain."""
    print("A function that uses the word has so many times 1 + branches, all else equal (functions with it):")
    for many, few in zip(order[::-1][:12], order[:12], strict=True):
        print("  ".join(f"{2 ** coef[j]:6.2f}  {words[j]:22.22} {uses[j]:6d}" for j in (many, few)))


def check(alpha, X, y) -> None:
    """The same fit by scikit-learn: how far apart, and how long it takes."""
    start = time.perf_counter()
    ours = Lasso(alpha=alpha, tol=TOL).fit(X, y)
    middle = time.perf_counter()
    peer = PeerLasso(alpha=alpha, tol=TOL, max_iter=100_000).fit(X, y)
    end = time.perf_counter()
    apart = np.abs(ours.predict(X) - peer.predict(X)).max()
    print(f"\nwithout a warm start: {middle - start:.2f} s, scikit-learn {end - middle:.2f} s; ", end="")
    print(f"predictions differ by at most {apart:.1e} (y has spread {y.std():.1f})")


def draw(picture, fits, best, words, order) -> None:
    """The strongest words; held-out R2 and support over alpha; the gap of every fit, pass by pass."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.15))
    bars, quality, gaps = (figure.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))

    shown = np.concatenate([order[:14], order[-14:]])
    shown = shown[np.argsort(best.coef_[shown])]
    coef = best.coef_[shown]
    bars.barh(range(len(shown)), coef, color=np.where(coef > 0, "tab:red", "tab:blue"))
    bars.set_yticks(range(len(shown)), words[shown], fontsize=9, family="monospace")
    bars.axvline(0, color="black", linewidth=0.8)
    bars.margins(y=0.01)
    bars.set(
        title=f"Words of few and of many branches, alpha = {best.alpha:.1e}",
        xlabel="coefficient: + 1 is twice as many (1 + branches)",
    )

    alphas = [fit.alpha for fit, _ in fits]
    quality.semilogx(alphas, [r2 for _, r2 in fits], "o-", color="tab:green")
    quality.axvline(best.alpha, color="grey", linestyle=":")
    quality.set(xlabel="alpha", title="How much to regularise")
    quality.set_ylabel("held-out $R^2$", color="tab:green")
    quality.invert_xaxis()
    support = quality.twinx()
    support.loglog(alphas, [np.count_nonzero(fit.coef_) for fit, _ in fits], "s--", color="tab:orange")
    support.set_ylabel("words used", color="tab:orange")

    passes = 0
    for (fit, _), colour in zip(fits, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(fits))), strict=True):
        gap = np.maximum(fit.history_["gap"], 1e-14)  # rounding may leave 0, or less
        gaps.semilogy(passes + 1 + np.arange(len(gap)), gap, "o-", color=colour, label=f"{fit.alpha:.1e}")
        passes += len(gap)
    gaps.legend(title="alpha", fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    gaps.set(xlabel="passes, all fits", ylabel="duality gap", title="One fit after the other, warm-started")
    gaps.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", default="words_of_python.png")
    parser.add_argument("--modules", type=int, help="about so many modules (all, if not given)")
    arguments = parser.parse_args()
    main(arguments.picture, arguments.modules)
