"""The contract's worked checks: seven small algorithms, each one class, the same in threads and on a cluster.

Sums over data use elementwise numpy, `einsum` or `bincount`, never BLAS: its bits depend on its threads.
"""

from types import SimpleNamespace

import numpy as np

from daskstrads import Gather, Pass, Program, Rotate, Rotation, RoundRobin, Scatter, Stream, Sum


class NNLS(Program):
    """min 1/2 ||A x - b||^2 over x >= 0, one variable a round; a part is some rows of (A, b)."""

    replicas = ("x",)

    def __init__(self, n_variables, tol=1e-10):
        self.schedule = RoundRobin(n_variables, tol=tol)

    def init(self, part, rank, size, rng):
        A, b = part
        return SimpleNamespace(A=A, residual=b.copy(), x=np.zeros(A.shape[1]))

    def push(self, shard, plan):
        a = shard.A[:, plan[0]]
        return Sum([np.sum(a * shard.residual), np.sum(a * a)])

    def pull(self, shard, plan, received, sent):
        (j,), (slope, curvature) = plan, received
        change = max(slope / curvature, -shard.x[j]) if curvature else 0.0
        shard.x[j] += change
        shard.residual -= change * shard.A[:, j]
        return abs(change)


class LassoTall(Program):
    """min 1/2 ||y - X b||^2 + lam ||b||_1; a part is some rows of (X, y), the coefficients are replicated.

    The ranks sum their parts of a block's Gram matrix and gradient, then all solve the small problem alike.
    """

    replicas = ("coef",)

    def __init__(self, n_variables, lam, block=8, tol=1e-10):
        self.schedule = RoundRobin(n_variables, block, tol=tol)
        self.lam = lam

    def init(self, part, rank, size, rng):
        X, y = part
        return SimpleNamespace(X=X, residual=y.copy(), coef=np.zeros(X.shape[1]))

    def push(self, shard, plan):
        x = shard.X[:, plan]
        return Sum(np.einsum("ij,ik->jk", x, x)), Sum(np.einsum("ij,i->j", x, shard.residual))

    def pull(self, shard, plan, received, sent):
        step = block_step(*received, shard.coef[plan], self.lam)
        shard.coef[plan] += step
        shard.residual -= np.einsum("ij,j->i", shard.X[:, plan], step)
        return np.abs(step).max()


class LassoWide(Program):
    """min 1/2 ||y - X b||^2 + lam ||b||_1; a part is (columns of X, the first one's number, y).

    The ranks gather the scheduled columns, then all update the replicated residual alike; coefficients
    stay with the rank that owns them.
    """

    replicas = ("residual",)

    def __init__(self, n_variables, lam, block=8, tol=1e-10):
        self.schedule = RoundRobin(n_variables, block, tol=tol)
        self.lam = lam

    def init(self, part, rank, size, rng):
        X, start, y = part
        return SimpleNamespace(X=X, start=start, residual=y.copy(), coef=np.zeros(X.shape[1]))

    def push(self, shard, plan):
        own = self._own(shard, plan)
        return Gather((shard.X[:, own], shard.coef[own]))

    def pull(self, shard, plan, received, sent):
        columns, coefs = zip(*received, strict=True)
        x, coef = np.concatenate(columns, axis=1), np.concatenate(coefs)  # in rank order: that of the plan
        gram, gradient = np.einsum("ij,ik->jk", x, x), np.einsum("ij,i->j", x, shard.residual)
        step = block_step(gram, gradient, coef, self.lam)
        shard.residual -= np.einsum("ij,j->i", x, step)
        own = self._own(shard, plan)
        shard.coef[own] += step[np.isin(plan, own + shard.start)]
        return np.abs(step).max()

    def _own(self, shard, plan):
        places = plan - shard.start
        return places[(places >= 0) & (places < len(shard.coef))]


def block_step(gram, gradient, coef, lam, sweeps=10):
    """Coordinate descent on 1/2 s'G s - g's + lam ||b + s||_1; the step s of the block."""
    step = np.zeros_like(coef)
    for _ in range(sweeps):
        for j in np.flatnonzero(np.diagonal(gram)):
            slope = gradient[j] - np.sum(gram[j] * step) + gram[j, j] * (coef[j] + step[j])
            step[j] = np.sign(slope) * max(abs(slope) - lam, 0.0) / gram[j, j] - coef[j]
    return step


class FusedCCD(Program):
    """min sum over ratings (a_ij - w_i h_j)^2 + lam (||W||^2 + ||H||^2), one feature of W and H a round.

    A part is (users, items, ratings, W, H): the ratings of some users, numbered from 0, and the start
    factors. One pass over the ratings commits feature t and prepares feature t + 1: it takes the change of
    h_t out of the residual, updates the users' w_(t+1), and adds up the numerators and denominators of
    h_(t+1). Hence the plan names both.
    """

    replicas = ("H",)

    def __init__(self, n_components, lam, sweeps):
        self.n_components, self.lam, self.sweeps = n_components, lam, sweeps

    def init(self, part, rank, size, rng):
        users, items, ratings, W, H = part
        residual = ratings - np.einsum("ij,ij->i", W[users], H[items])
        shard = SimpleNamespace(users=users, items=items, residual=residual, W=W.copy(), H=H.copy())
        self._pass(shard, 0)
        return shard

    def schedule(self, round, reports):
        if round < self.sweeps * self.n_components:
            return round % self.n_components, (round + 1) % self.n_components
        return None

    def push(self, shard, plan):
        return Sum(shard.sums)

    def pull(self, shard, plan, received, sent):
        feature, following = plan
        numerator, denominator = received
        new = numerator / (self.lam + denominator)
        change = new - shard.H[:, feature]
        shard.H[:, feature] = new
        shard.residual -= shard.W[shard.users, feature] * change[shard.items]
        self._pass(shard, following)

    def _pass(self, shard, t):
        """Update w_t (private to the rank); then the numerators and denominators of h_t, (2, items)."""
        users, items, h = shard.users, shard.items, shard.H[shard.items, t]
        target = shard.residual + shard.W[users, t] * h
        n_users, n_items = len(shard.W), len(shard.H)
        squares = self.lam + np.bincount(users, h * h, n_users)
        shard.W[:, t] = np.bincount(users, target * h, n_users) / squares
        w = shard.W[users, t]
        shard.residual = target - w * h
        shard.sums = np.stack([np.bincount(items, target * w, n_items), np.bincount(items, w * w, n_items)])


class ALS(Program):
    """min sum over ratings (a_ij - w_i h_j)^2 + lam (||W||^2 + ||H||^2), users and items in turn.

    A part is (users, items, ratings, W, n_items), the ratings of some users, numbered from 0. Each rank
    owns its users' factors and a piece of the items: an item round scatters the normal equations of
    all items to their owners, a user round gathers the items' new factors.
    """

    def __init__(self, lam, sweeps):
        self.lam, self.sweeps = lam, sweeps

    def init(self, part, rank, size, rng):
        users, items, ratings, W, n_items = part
        shard = SimpleNamespace(users=users, items=items, ratings=ratings, W=W.copy(), n_items=n_items)
        shard.H = np.empty((0, W.shape[1]))  # this rank's piece
        return shard

    def schedule(self, round, reports):
        return ("items", "users")[round % 2] if round < 2 * self.sweeps else None

    def push(self, shard, plan):
        if plan == "users":
            return Gather(shard.H)
        return Scatter(normal_equations(shard.items, shard.n_items, shard.W[shard.users], shard.ratings))

    def pull(self, shard, plan, received, sent):
        if plan == "items":
            shard.H = self._solve(received)
        else:
            h = np.concatenate(received)[shard.items]
            shard.W = self._solve(normal_equations(shard.users, len(shard.W), h, shard.ratings))

    def _solve(self, equations):
        gram, right = equations[:, :-1], equations[:, -1]
        return np.linalg.solve(gram + self.lam * np.eye(gram.shape[1]), right[..., None])[..., 0]


def normal_equations(groups, n_groups, factors, ratings):
    """(n_groups, k + 1, k): each group's Gram matrix of `factors` (ratings, k), its right side below."""
    n, k = factors.shape
    both = np.concatenate([factors, ratings[:, None]], axis=1)
    products = both[:, :, None] * factors[:, None, :]
    sums = [np.bincount(groups, column, n_groups) for column in products.reshape(n, -1).T]
    return np.stack(sums, axis=1).reshape(n_groups, k + 1, k)


class RotatedLDA(Program):
    """Topics of words by collapsed Gibbs sampling; a part is (documents, words) of its tokens.

    Blocks of words go round the ranks: word w is row w // P of block w % P, and a rank samples the tokens
    whose words it holds. Only the topics' totals are shared; they drift within a round. The first
    sweep deals the topics out, so no preparation is needed.
    """

    replicas = ("totals",)

    def __init__(self, n_words, n_topics, sweeps, seed=0, alpha=0.1, beta=0.01):
        self.schedule = Rotation(1 + sweeps)
        self.n_words, self.n_topics = n_words, n_topics
        self.seed, self.alpha, self.beta = seed, alpha, beta

    def init(self, part, rank, size, rng):
        documents, words = part
        return SimpleNamespace(
            rank=rank,
            size=size,
            documents=documents,
            words=words,
            topics=np.zeros(len(words), np.int64),
            in_document=np.zeros((documents.max(initial=-1) + 1, self.n_topics), np.int64),
            block=np.zeros((-(-self.n_words // size), self.n_topics), np.int64),
            totals=np.zeros(self.n_topics, np.int64),
        )

    def push(self, shard, plan):
        held = (shard.rank - plan.shift) % shard.size
        rng = np.random.default_rng([self.seed, plan.sweep, held, shard.rank])
        block, totals = shard.block, shard.totals.copy()
        for token in np.flatnonzero(shard.words % shard.size == held):
            word, document = (
                block[shard.words[token] // shard.size],
                shard.in_document[shard.documents[token]],
            )
            counts = (word, document, totals)
            if plan.sweep:
                for count in counts:
                    count[shard.topics[token]] -= 1
            odds = (word + self.beta) * (document + self.alpha) / (totals + self.n_words * self.beta)
            topic = np.searchsorted(np.cumsum(odds), rng.random() * np.sum(odds))
            shard.topics[token] = min(topic, self.n_topics - 1)  # rounding
            for count in counts:
                count[shard.topics[token]] += 1
        return Rotate(block), Sum(totals - shard.totals)

    def pull(self, shard, plan, received, sent):
        shard.block, drift = received
        shard.totals += drift


class TopKSGD(Program):
    """Least squares by gradient steps of which only the `k` largest entries are sent (SparCML, section 7).

    A part is some rows of (X, y). What a rank does not send it remembers and adds to its next step:
    without this error feedback small entries would never arrive.
    """

    replicas = ("params",)

    def __init__(self, k, rate, batches, epochs):
        self.schedule = RoundRobin(batches, sweeps=epochs, shuffled=True)
        self.k, self.rate, self.batches = k, rate, batches

    def init(self, part, rank, size, rng):
        X, y = part
        return SimpleNamespace(X=X, y=y, params=np.zeros(X.shape[1]), memory=np.zeros(X.shape[1]))

    def push(self, shard, plan):
        rows = slice(plan[0], None, self.batches)
        error = np.einsum("ij,j->i", shard.X[rows], shard.params) - shard.y[rows]
        shard.memory += self.rate * np.einsum("ij,i->j", shard.X[rows], error)
        top = np.argsort(-np.abs(shard.memory), kind="stable")[: self.k]
        return Stream.from_coo(top, shard.memory[top], len(shard.memory))

    def pull(self, shard, plan, received, sent):
        shard.params -= received.dense()
        shard.memory -= sent.dense()


class Carousel(Program):
    """Two blocks a rank go round without anybody waiting for them; every rank changes each of them.

    Besides, a long vector is summed in every round, and every other round passes nothing on.
    """

    replicas = ("total",)

    def __init__(self, sweeps):
        self.schedule = RoundRobin(1, sweeps=sweeps)

    def init(self, part, rank, size, rng):
        return SimpleNamespace(
            rank=rank, size=size, queue=[np.array(block) for block in part], total=np.zeros(9000), turn=0
        )

    def push(self, shard, plan):
        vector = np.full(9000, shard.rank + 1.0)
        if shard.turn % 2:
            return vector
        block = shard.queue.pop(0)
        return Pass(1.5 * block + shard.rank, last=shard.turn % 8 == 6), vector

    def pull(self, shard, plan, received, sent):
        blocks, vector = ([], received) if shard.turn % 2 else received
        assert (
            len(blocks) == (1 if shard.turn % 8 in (2, 4) else 2 if shard.turn % 8 == 6 else 0)
            or shard.turn % 2
        )
        shard.queue += blocks
        shard.total = shard.total + vector
        shard.turn += 1
