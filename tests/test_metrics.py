"""Metrics against closed forms of Gaussians."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fmcpe import metrics
from fmcpe.metrics import classifiers

NORMAL = torch.distributions.Normal(0.0, 1.0)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(autouse=True)
def global_state_unchanged() -> Iterator[None]:
    """No metric, called in whatever way a test does, moves a global generator or torch's switches."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    switches = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.distributions.Distribution._validate_args)
    yield
    assert torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert switches == (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.distributions.Distribution._validate_args,
    )


class LinearGaussian:
    """θ ~ N(0, I), y = Aθ + ε: the posterior is N(PAᵀy, P) with P = (I + AᵀA)⁻¹."""

    def __init__(self, n: int, p: int = 3, d: int = 10, seed: int = 0) -> None:
        self.A = 0.7 * normal(seed + 1, d, p)
        self.theta = normal(seed + 2, n, p)
        self.y = self.theta @ self.A.T + normal(seed + 3, n, d)
        covariance = torch.linalg.inv(torch.eye(p, dtype=torch.float64) + self.A.T @ self.A)
        self.root = torch.linalg.cholesky(covariance)
        self.mean = self.y @ self.A @ covariance

    def draw(self, seed: int, width: float = 1.0, shift: float = 0.0) -> Tensor:
        """One draw per observation, `width` too wide and `shift` deviations off along one whitened axis."""
        z = width * normal(seed, *self.mean.shape)
        z[:, 0] += shift
        return self.mean + z @ self.root.T


@pytest.fixture(scope="module")
def pairs() -> LinearGaussian:
    return LinearGaussian(2000)


# --- C2ST -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 2.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_c2st_is_the_bayes_accuracy_of_shifted_gaussians(shift: float) -> None:
    a, b = normal(0, 1000, 2), normal(1, 1000, 2)
    b[:, 0] += shift
    bayes = float(NORMAL.cdf(torch.tensor(shift / 2)))
    assert metrics.c2st(a, b) == pytest.approx(bayes, abs=0.03)


def test_c2st_does_not_depend_on_units_and_repeats_with_its_seed() -> None:
    a, b = normal(0, 150, 2), normal(1, 150, 2) + 1.0
    scale = torch.tensor([2.0**20, 2.0**-20])  # powers of two, so that the z-scores are the same to the last bit
    first = metrics.c2st(a, b, seed=3)
    assert first == metrics.c2st(scale * a, scale * b, seed=3)
    assert {first} != {metrics.c2st(a, b, seed=seed) for seed in (4, 5, 6)}


def other(case: str, d: int) -> Tensor:
    """Samples to compare with N(0, I)."""
    b = normal(101, 1000, d)
    if case == "bimodal":  # with mean 0 and covariance I
        b[:, 0] = 0.9 * normal(102, 1000).sign() + 0.19**0.5 * b[:, 0]
    shift, scale = {"shifted": (0.6 / d**0.5, 1.0), "wide": (0.0, 1.3), "both": (0.2, 1.1)}.get(case, (0.0, 1.0))
    return shift + scale * b


def sklearns_c2st(a: Tensor, b: Tensor) -> float:
    """The "mlp" of `sbi.utils.metrics.c2st` with stratified folds, one after the other; sbi's switches validation off."""
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    a, b = metrics.standardise(a, b)
    net = MLPClassifier((10 * a.shape[1],) * 2, max_iter=1000, early_stopping=True, n_iter_no_change=50, random_state=0)
    rows, labels = torch.cat([a, b]).numpy(), np.repeat([0, 1], len(a))
    return float(cross_val_score(net, rows, labels, cv=StratifiedKFold(5, shuffle=True, random_state=0)).mean())


@pytest.mark.parametrize(
    ("cases", "dimensions", "apart", "weaker"),
    [
        (("equal", "wide", "bimodal"), (2,), 0.02, 0.01),
        pytest.param(
            ("equal", "shifted", "wide", "bimodal", "both"), (2, 3, 10), 0.012, 0.005, marks=pytest.mark.nightly
        ),
    ],
)
def test_c2st_agrees_with_sklearns(
    cases: tuple[str, ...], dimensions: tuple[int, ...], apart: float, weaker: float
) -> None:
    ours, theirs = [], []
    for d in dimensions:
        a, bs = normal(100, 1000, d), torch.stack([other(case, d) for case in cases])
        each = [metrics.c2st_each(a.expand_as(bs), bs, seed=seed) for seed in range(3)]
        ours += np.mean(each, axis=0).tolist()
        theirs += [sklearns_c2st(a, b) for b in bs]
    difference = np.array(ours) - np.array(theirs)
    assert np.abs(difference).mean() <= apart
    assert difference.mean() >= -weaker  # a weak classifier would flatter every posterior


def test_many_comparisons_at_once_are_what_they_are_one_by_one() -> None:
    a = normal(0, 203, 2).expand(3, -1, -1)
    b = torch.stack([normal(1, 203, 2), 1.0 + normal(2, 203, 2), 50.0 + 9.0 * normal(3, 203, 2)])
    together = metrics.c2st_each(a, b, folds=4, seed=1)
    assert together[0] < 0.6 < together[1] < together[2] <= 1.0
    with torch.no_grad():
        alone = [metrics.c2st(x, y, folds=4, seed=1) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    assert together == pytest.approx(alone, abs=0.005)


def test_no_row_is_tested_by_a_classifier_that_has_seen_it() -> None:
    a, b = normal(0, 8, 123, 10), normal(1, 8, 123, 10)
    assert np.mean(metrics.c2st_each(a, b, folds=4)) == pytest.approx(0.5, abs=0.03)


def test_each_classifier_keeps_its_best_weights() -> None:
    noise = normal(0, 6, 10, 100, 2).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        networks = classifiers._untrained(10, 3, 2)
        classifiers._train_rows(networks, noise)
    # Guessing costs log 2 a row; so does the best that can be learned of noise, and the last step's costs several times that.
    assert classifiers._losses(networks, noise[:, :, :10]).max() < 1.2 * math.log(2)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 5))])
def test_joint_c2st_of_the_exact_posterior_is_one_half(pairs: LinearGaussian, seed: int) -> None:
    assert metrics.joint_c2st(pairs.theta, pairs.draw(20 + seed), pairs.y, seed=seed) == pytest.approx(0.5, abs=0.03)


def test_joint_c2st_reaches_the_bayes_accuracy_of_a_shifted_posterior(pairs: LinearGaussian) -> None:
    score = metrics.joint_c2st(pairs.theta, pairs.draw(4, shift=2.0), pairs.y)
    bayes = float(NORMAL.cdf(torch.tensor(1.0)))
    assert bayes - 0.04 < score < bayes + 0.02


def test_joint_c2st_sees_a_posterior_that_ignores_y(pairs: LinearGaussian) -> None:
    assert metrics.joint_c2st(pairs.theta[:800], pairs.theta[:800].roll(1, 0), pairs.y[:800]) > 0.8


def test_joint_c2st_repeats_with_its_seed_and_takes_numpy() -> None:
    small = LinearGaussian(60)
    inputs = [part.numpy() for part in (small.theta, small.draw(1, shift=1.0), small.y)]
    scores = [metrics.joint_c2st(*inputs, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert scores[0] == scores[1]
    assert len(set(scores)) > 1


class Mean(nn.Module):
    """An embedding with a dropout and a batch norm, to see that it is switched between training and use."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, y: Tensor) -> Tensor:
        assert self.training == torch.is_grad_enabled()
        return self.net(y).mean((2, 3), keepdim=True)


def test_joint_c2st_takes_an_embedding_of_images() -> None:
    theta = normal(0, 400, 1)
    images = theta[:, :, None, None] + 0.1 * normal(1, 400, 1, 4, 4)
    right = metrics.joint_c2st(theta, theta + 0.02 * normal(2, 400, 1), images, folds=2, embedding=Mean)
    wrong = metrics.joint_c2st(theta, theta.roll(1, 0), images, folds=2, embedding=Mean)
    assert right < 0.6 and wrong > 0.7


def test_joint_c2st_copies_an_embedding_that_it_trains() -> None:
    with torch.random.fork_rng():
        embedding = nn.Linear(2, 2)
    weights = embedding.weight.clone()
    theta = normal(0, 40, 1)
    metrics.joint_c2st(theta, theta.roll(1, 0), theta.expand(40, 2), embedding=embedding)
    assert torch.equal(embedding.weight, weights)


def test_plain_folds_would_be_biased(pairs: LinearGaussian) -> None:
    """The trap that grouped folds avoid: the exact posterior scores far below ½ with the rows dealt at random."""
    a, b = metrics.joint(pairs.theta[:500], pairs.draw(6)[:500], pairs.y[:500])
    from sklearn.neighbors import KNeighborsClassifier

    rows, labels = torch.cat([a, b]).numpy(), np.repeat([0, 1], 500)
    test = np.random.default_rng(0).permutation(1000) < 333
    plain = KNeighborsClassifier(1).fit(rows[~test], labels[~test]).score(rows[test], labels[test])
    assert plain < 0.45
    assert metrics.joint_c2st(pairs.theta[:500], pairs.draw(6)[:500], pairs.y[:500]) > 0.45


# --- W2 and MMD -------------------------------------------------------------------------------------------------


def test_wasserstein2_of_shifted_points_is_the_shift() -> None:
    a = normal(0, 400, 3)
    assert metrics.wasserstein2(a, a + torch.tensor([3.0, 4.0, 0.0])) == pytest.approx(5.0, abs=1e-6)
    assert metrics.wasserstein2(a, a[torch.randperm(400, generator=torch.Generator())]) == pytest.approx(0, abs=1e-6)


def test_wasserstein2_of_gaussians_in_one_dimension() -> None:
    # W2² = (m1 - m2)² + (s1 - s2)²
    a, b = normal(0, 2000, 1), 2.0 + 3.0 * normal(1, 2000, 1)
    assert metrics.wasserstein2(a, b) == pytest.approx(math.sqrt(4 + 4), rel=0.05)
    assert metrics.wasserstein2(a, b, max_points=500) == metrics.wasserstein2(a, b, max_points=500)
    assert metrics.wasserstein2(a, b, max_points=500) != metrics.wasserstein2(a, b, max_points=500, seed=1)


def test_wasserstein2_of_gaussians_with_different_covariances() -> None:
    # W2² = |m|² + tr(A + B - 2 (A^½ B A^½)^½), here with A = I and B = LLᵀ
    root = torch.tensor([[2.0, 0.0], [1.5, 0.5]], dtype=torch.float64)
    shift = torch.tensor([1.0, -2.0], dtype=torch.float64)
    covariance = root @ root.T
    exact = math.sqrt(5 + 2 + float(covariance.trace()) - 2 * float(torch.linalg.eigvalsh(covariance).sqrt().sum()))
    a, b = normal(0, 2000, 2), shift + normal(1, 2000, 2) @ root.T
    assert metrics.wasserstein2(a, b) == pytest.approx(exact, rel=0.05)


def test_wasserstein2_weighs_sets_of_different_size_alike() -> None:
    assert metrics.wasserstein2(np.zeros((2, 1)), np.array([[1.0], [1.0], [3.0], [3.0]])) == pytest.approx(5**0.5)


def expected_mmd2(shift: Tensor, sigma: float) -> float:
    """MMD² of N(0, I) and N(shift, I): E k = (σ²/(σ²+2))^{d/2} exp(-|m|²/2(σ²+2))."""
    d, s = len(shift), sigma**2
    return 2 * (s / (s + 2)) ** (d / 2) * (1 - math.exp(-float(shift.square().sum()) / (2 * (s + 2))))


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_mmd2_is_unbiased(shift: float) -> None:
    # Few rows and a kernel narrow enough that one diagonal kept by mistake would be 1/20 off.
    offset = torch.tensor([shift, 0.0], dtype=torch.float64)
    values = torch.tensor(
        [metrics.mmd2(normal(2 * i, 20, 2), normal(2 * i + 1, 25, 2) + offset, 1.0) for i in range(2000)]
    )
    error = float(values.std()) / len(values) ** 0.5
    assert float(values.mean()) == pytest.approx(expected_mmd2(offset, 1.0), abs=4 * error)
    assert error < 0.002
    assert float(values.min()) < 0


def test_mmd2_of_many_rows_is_the_closed_form() -> None:
    offset = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    a, b = normal(0, 2500, 3), normal(1, 2500, 3) + offset
    assert metrics.mmd2(a, b, 2.0) == pytest.approx(expected_mmd2(offset, 2.0), abs=0.01)
    assert metrics.mmd2(a, b) == pytest.approx(expected_mmd2(offset, 10.0), abs=0.003)
    assert metrics.mmd2(a, b, "median") > 0.02


@pytest.mark.parametrize("three", [3, np.float32(3), np.int64(3), np.array(3.0), torch.tensor(3.0)])
def test_mmd2_takes_every_kind_of_number(three) -> None:
    a, b = normal(0, 30, 2), normal(1, 30, 2) + 1.0
    assert metrics.mmd2(a, b, three) == metrics.mmd2(a, b, 3.0)


def test_mmd2_of_pairs_that_share_y_needs_paired() -> None:
    """The paper's cross term holds N pairs with the same y, and shifts the exact posterior below zero."""
    plain, paired = [], []
    for seed in range(0, 1200, 4):
        small = LinearGaussian(20, p=1, d=2, seed=seed)
        rows = metrics.joint(small.theta, small.draw(seed + 10**6), small.y, space="physical")
        plain.append(metrics.mmd2(*rows, bandwidth=0.5))
        paired.append(metrics.mmd2(*rows, bandwidth=0.5, paired=True))
    error = float(np.std(paired)) / len(paired) ** 0.5
    assert float(np.mean(paired)) == pytest.approx(0, abs=4 * error)
    assert float(np.mean(plain)) < -4 * error


# --- spaces and errors ------------------------------------------------------------------------------------------


def test_the_space_of_joint_metrics() -> None:
    theta, hat, y = 0.5 + 0.1 * normal(0, 50, 2).clamp(-4, 4), torch.full((50, 2), 0.5), 1e3 * normal(1, 50, 4, 3)
    a, b = metrics.joint(theta, hat, y, space="physical")
    assert torch.equal(a[:, :2], theta) and torch.equal(b[:, 2:], y.flatten(1)) and a.shape == (50, 14)
    a, b = metrics.joint(theta, hat, y)
    assert a[:, :2].mean(0).abs().max() < 1e-9 and torch.allclose(a[:, :2].std(0), torch.ones(2).double())
    assert a[:, 2:].mean().abs() < 1e-9 and torch.equal(a[:, 2:], b[:, 2:])
    c, _ = metrics.joint(theta, hat, y, space="unconstrained", transform=torch.logit)
    assert torch.allclose(c[:, :2], metrics.standardise(torch.logit(theta))[0]) and not torch.allclose(a, c)


def test_standardise_uses_the_reference_and_only_centres_constants() -> None:
    reference, other = metrics.standardise(torch.tensor([[0.0, 7.0], [2.0, 7.0]]), torch.tensor([[3.0, 8.0]]))
    assert torch.allclose(other, torch.tensor([[2**0.5, 1.0]]).double())
    assert torch.equal(reference[:, 1], torch.zeros(2).double())


NAN = torch.tensor([[float("nan"), 0.0], [0.0, 0.0]])
WRONG = {
    "nan": lambda: metrics.c2st(NAN, torch.zeros(2, 2)),
    "one axis": lambda: metrics.wasserstein2(torch.zeros(5), torch.zeros(5)),
    "columns": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(5, 3)),
    "text": lambda: metrics.mmd2("a", "b"),
    "bandwidth": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(5, 2), "median"),
    "bandwidth's name": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(5, 2), "mean"),  # type: ignore[arg-type]
    "bandwidth's sign": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(5, 2), np.float32(-1)),
    "bandwidths": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(5, 2), torch.ones(2)),
    "paired": lambda: metrics.mmd2(torch.zeros(5, 2), torch.zeros(4, 2), paired=True),
    "rows": lambda: metrics.c2st(torch.zeros(5, 2), torch.zeros(4, 2)),
    "folds": lambda: metrics.c2st(torch.zeros(5, 2), torch.zeros(5, 2), folds=9),
    "comparisons": lambda: metrics.c2st_each(torch.zeros(2, 5, 2), torch.zeros(3, 5, 2)),
    "no comparisons": lambda: metrics.c2st_each(torch.zeros(5, 2), torch.zeros(5, 2)),
    "folds of each": lambda: metrics.c2st_each(torch.zeros(1, 5, 2), torch.zeros(1, 5, 2), folds=9),
    "draws": lambda: metrics.energy_score(torch.zeros(1, 5, 2), torch.zeros(5, 2)),
    "batch": lambda: metrics.mse(torch.zeros(3, 4, 2), torch.zeros(5, 2)),
    "y": lambda: metrics.joint(torch.zeros(5, 2), torch.zeros(5, 2), torch.zeros(5)),
    "space": lambda: metrics.joint(torch.zeros(5, 2), torch.zeros(5, 2), torch.zeros(5, 1), "logit"),  # type: ignore[arg-type]
    "transform": lambda: metrics.joint(torch.zeros(5, 2), torch.zeros(5, 2), torch.zeros(5, 1), "unconstrained"),
    "infinite": lambda: metrics.joint(
        torch.zeros(5, 2), torch.zeros(5, 2), torch.zeros(5, 1), "unconstrained", torch.log
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_say_what_was_expected_what_was_given_and_what_to_do(case: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(?s)^Expected .+, got .+\. [A-Z]"):
        WRONG[case]()


@pytest.mark.parametrize("points", [0, 1, -3, 2.5])
def test_a_subset_of_too_few_points_is_refused(points):
    with pytest.raises(ValueError, match="max_points"):
        metrics.wasserstein2(torch.zeros(20, 2), torch.ones(30, 2), max_points=points)


def test_crps_is_the_energy_score_of_one_parameter_and_known_for_a_normal():
    generator = torch.Generator().manual_seed(0)
    draws, truth = torch.randn(400, 50, 3, generator=generator), torch.randn(50, 3, generator=generator)
    each = metrics.crps(draws, truth)
    for k in range(3):
        assert float(each[k]) == pytest.approx(
            metrics.energy_score(draws[..., k : k + 1], truth[:, k : k + 1]), rel=1e-4
        )
    # of a standard normal at 0: (√2 - 1) / √π
    exact = metrics.crps(torch.randn(20_000, 5, 1, generator=generator), torch.zeros(5, 1))
    assert float(exact[0]) == pytest.approx((2**0.5 - 1) / math.pi**0.5, abs=0.01)
