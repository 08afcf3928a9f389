"""What is Python's standard library about? Topics of its docstrings and comments.

    python examples/topics_of_python.py [picture.png] [--topics K] [--sweeps N]

Real text that every machine has: a document is a module, its words are those of its docstrings and
comments. Prints every topic's words and the modules that are most about it, compares the perplexity of
documents held out with that of single words' frequencies, and draws which packages are about what.
"""

import argparse
import ast
import io
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from daskstrads import LatentDirichletAllocation

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
PLAIN = {"return", "returns", "self", "none", "true", "false", "def", "use", "used", "like", "does", "just"}


def main(picture: str, topics: int, sweeps: int) -> None:
    """Read, fit, tell, draw."""
    names, texts = modules()
    counter = CountVectorizer(
        token_pattern=r"[a-z]{3,}", stop_words=sorted(ENGLISH_STOP_WORDS | PLAIN), min_df=5, max_df=0.3
    )
    counts = counter.fit_transform(texts)
    words = counter.get_feature_names_out()
    print(f"{len(names)} modules, {len(words)} words, {counts.sum()} tokens")

    rng = np.random.default_rng(0)
    held = rng.random(len(names)) < 0.1
    model = LatentDirichletAllocation(
        topics, doc_topic_prior=0.1, topic_word_prior=0.05, max_iter=sweeps, random_state=0
    ).fit(counts[~held])
    often = np.asarray(counts[~held].sum(axis=0)).ravel() + 0.05
    shares = often / often.sum()
    tokens = counts[held]
    plain = np.exp(-(tokens @ np.log(shares)).sum() / tokens.sum())
    print(f"perplexity of {held.sum()} modules held out: ", end="")
    print(f"{model.perplexity(tokens):.0f}, without topics {plain:.0f}\n")

    print(model.top_words(8, words))
    theta = model.transform(counts)
    print("\nmost about it:")
    sizes = np.asarray(counts.sum(axis=1)).ravel()
    for topic in range(topics):
        most = np.argsort(-theta[:, topic] * (sizes > 200))[:4]
        print(f"{topic:5d}  {', '.join(names[place] for place in most)}")
    draw(picture, model, words, names, theta, sizes)
    print(f"picture: {picture}")


def modules() -> tuple[list[str], list[str]]:
    """Every module's name, and the text of its docstrings and comments; tests left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names, texts = [], []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if LEFT_OUT & set(parts) or parts[0] in ("encodings", "lib2to3"):  # tables of characters, a copy
            continue
        try:
            source = path.read_text("utf-8")
            text = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if documented(node)]
            read = tokenize.generate_tokens(io.StringIO(source).readline)
            text += [token.string for token in read if token.type == tokenize.COMMENT]
        except (SyntaxError, ValueError, tokenize.TokenError):  # templates, samples of other versions
            continue
        names.append(".".join(part for part in parts if part != "__init__"))
        texts.append("\n".join(text).lower())
    if not names:
        raise SystemExit(f"no source of the standard library below {root}")
    return names, texts


def documented(node: ast.AST) -> bool:
    """Whether a node can have a docstring."""
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def draw(picture, model, words, names, theta, sizes) -> None:
    """What the larger packages are about, and how the likelihood rose."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    package = np.array([name.split(".")[0] for name in names])
    large = [name for name in np.unique(package) if sizes[package == name].sum() > sizes.sum() / 80]
    shares = np.array(
        [(theta * sizes[:, None])[package == name].sum(0) / sizes[package == name].sum() for name in large]
    )
    order = np.argsort(shares.argmax(1), kind="stable")
    table = model.top_words(4, words)
    labels = [f"{topic}: {' '.join(row)}" for topic, row in enumerate(table.words)]

    figure, (map_, curve) = plt.subplots(2, 1, figsize=(12, 11), height_ratios=(4, 1), layout="constrained")
    image = map_.imshow(shares[order].T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    map_.set_xticks(range(len(large)), [large[place] for place in order], rotation=60, ha="right")
    map_.set_yticks(range(len(labels)), labels, fontsize=9)
    map_.set_title("What the larger packages of the standard library are about")
    figure.colorbar(image, ax=map_, label="share of a package's words")
    curve.plot(np.arange(1, model.n_iter_ + 1), model.log_likelihood_, color="tab:blue")
    curve.set(xlabel="sweeps", ylabel="log likelihood a token", title="Gibbs sampling, sweep by sweep")
    curve.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", default="topics_of_python.png")
    parser.add_argument("--topics", type=int, default=24)
    parser.add_argument("--sweeps", type=int, default=200)
    arguments = parser.parse_args()
    main(arguments.picture, arguments.topics, arguments.sweeps)
