"""Which films would they like? Ratings factorised, test error sweep by sweep, recommendations, neighbours.

    python examples/films.py [picture.png]

Reads ml_latest_small_2016.npz (MovieLens latest-small: users, items, ratings) from the folder
$DASKSTRADS_DATA; where there is none it makes a small set of ratings, and says so.
"""

import os
import sys
from pathlib import Path

import numpy as np

from daskstrads import MatrixFactorization

SWEEPS = 20


def main(picture: str) -> None:
    """Fit sweep by sweep, recommend, draw."""
    (users, items, ratings), source = read()
    print(f"{source}: {len(ratings)} ratings, {len(np.unique(users))} users, {len(np.unique(items))} films")
    test = np.random.default_rng(0).random(len(ratings)) < 0.1
    train, held = ((users[keep], items[keep], ratings[keep]) for keep in (~test, test))

    biases = MatrixFactorization(1, reg=10.0, reg_scaling="plain", random_state=0).fit(train)
    biases.components_[:] = 0.0
    plain = -biases.score(held)
    curves = {}
    for k in (10, 100):
        model = MatrixFactorization(k, reg=0.1, random_state=0, max_iter=1, tol=0.0, warm_start=True)
        curves[k] = []
        for _ in range(SWEEPS):
            model.fit(train)  # one sweep more
            curves[k].append((model.history_["rmse"][-1], -model.score(held)))
        known, unknown = curves[k][-1]
        print(f"{k:4d} components: RMSE {known:.3f} of known ratings, {unknown:.3f} of held-out ones")
    print(f"biases alone: {plain:.3f} of held-out ones")

    someone = model.user_ids_[np.argmax(model.user_counts_)]
    films, stars = model.recommend(someone, n=5, exclude=train)
    print(f"\nuser {someone}, who rated {model.user_counts_.max()} films, might like")
    for film, star in zip(films, stars, strict=True):
        print(f"  film {film}: {star:.2f} stars")
    favourite = model.item_ids_[np.argmax(model.item_counts_)]
    alike, cosines = model.similar_items(favourite, n=5)
    print(f"film {favourite}, rated most, is most like")
    for film, cosine in zip(alike, cosines, strict=True):
        print(f"  film {film}: {cosine:.2f}")
    draw(picture, curves, plain, source)
    print(f"picture: {picture}")


def read():
    """(users, items, ratings), and where they are from."""
    path = Path(os.environ.get("DASKSTRADS_DATA", "")) / "ml_latest_small_2016.npz"
    if path.is_file():
        with np.load(path) as stored:
            return (
                stored["user"],
                stored["item"],
                stored["rating"].astype(np.float32),
            ), "MovieLens latest-small"
    rng = np.random.default_rng(1)
    n_users, n_films, rank = 300, 400, 5
    users, films = np.nonzero(rng.random((n_users, n_films)) < rng.beta(1, 8, n_films))
    taste, kind = rng.normal(size=(n_users, rank)), rng.normal(size=(n_films, rank))
    stars = 3.5 + 0.3 * rng.normal(size=n_users)[users] + 0.4 * rng.normal(size=n_films)[films]
    stars += 0.35 * np.einsum("ij,ij->i", taste[users], kind[films]) + 0.5 * rng.normal(size=len(users))
    ratings = np.clip(np.rint(2 * stars) / 2, 0.5, 5.0).astype(np.float32)
    return (users, films, ratings), "generated ratings (no MovieLens in $DASKSTRADS_DATA)"


def draw(picture, curves, plain, source):
    """RMSE against sweeps, of known and of held-out ratings."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (k, curve), colour in zip(curves.items(), ("tab:blue", "tab:orange"), strict=True):
        known, held = np.transpose(curve)
        sweeps = np.arange(1, len(curve) + 1)
        axes.plot(sweeps, held, color=colour, marker="o", ms=3, label=f"{k} components, held out")
        axes.plot(sweeps, known, color=colour, ls=":", label=f"{k} components, known")
    axes.axhline(plain, color="grey", ls="--", lw=1, label="biases alone, held out")
    axes.set(xlabel="sweeps", ylabel="RMSE (stars)", title=source)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "films.png")
