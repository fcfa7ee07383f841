"""Tasks: one contract for all, and reference posteriors against brute force and rank uniformity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.distributions import MultivariateNormal

from fmcpe import tasks
from fmcpe._random import derive, seeded
from fmcpe.nn.describe import describe
from fmcpe.tasks.base import BLOCK, Task

SIDES = ("real", "simulator")


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of small operations: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=tasks.names())
def task(request) -> Task:
    return tasks.get(request.param)


def rank_p_values(task: Task, side: str, pairs: int, draws: int = 200) -> list[float]:
    """KS p-values of the true θ's rank u among reference draws, and of |2u − 1|, for each parameter.

    Both are uniform if the reference is right. The first sees bias; the second sees a wrong width, to which the
    first is nearly blind.
    """
    with seeded(derive(7, task.name, side)):
        # What a base posterior is right about on average is the prior that it was trained with.
        theta = (task.prior if side == "real" else task.simulation_prior).sample((pairs,))
        data = task.observe(theta) if side == "real" else task.simulator(theta)
        samples = torch.stack([task.reference_posterior(row, side=side).sample((draws,)) for row in data])
        # The uniform spreads each discrete rank over its bin, which makes the KS test exact.
        u = ((samples < theta[:, None]).sum(1) + torch.rand(theta.shape)) / (draws + 1)
    columns = torch.cat([u, (2 * u - 1).abs()], 1).T.numpy()
    return [float(kstest(column, "uniform").pvalue) for column in columns]


def test_shapes_and_types(task):
    theta = task.prior.sample((7,))
    assert theta.shape == (7, len(task.theta_names))
    assert (task.simulation_prior is task.prior) == (not task.name.endswith("-prior"))
    assert task.real_side == ("stand-in" if task.name in ("wind-tunnel", "light-tunnel") else "process")
    for data in (task.simulator(theta), task.observe(theta), task.calibration_set(7, seed=0)[1]):
        assert data.shape == (7, *task.x_shape)
        assert data.dtype == torch.float32
    net = task.embedding_net()
    if net is not None:
        assert net(data).shape[0] == 7
        assert 10 <= net(data).shape[1] <= 16
        assert describe(net) is not None  # or a posterior with this network could not be saved


def test_sets_are_nested_reproducible_and_disjoint(task):
    state = torch.get_rng_state()
    theta, y = task.calibration_set(BLOCK + 50, seed=3)
    for n in (1, 10, BLOCK, BLOCK + 1):
        smaller = task.calibration_set(n, seed=3)
        assert torch.equal(smaller[0], theta[:n])
        assert torch.equal(smaller[1], y[:n])
    test_theta, test_y = task.test_set(BLOCK + 50, seed=3)
    other_theta, _ = task.calibration_set(BLOCK + 50, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert test_y.shape == y.shape
    assert len(torch.cat([theta, test_theta, other_theta]).unique(dim=0)) == 3 * (BLOCK + 50)


def test_paired_simulations_come_where_y_is_built_from_one(task):
    if task.name != "gaussian-ci":
        with pytest.raises(NotImplementedError, match=rf"'{task.name}' is not built from a simulation"):
            task.calibration_set(3, seed=0, paired=True)
        return
    assert [len(rows) for rows in task.calibration_set(BLOCK + 1, seed=0, paired=True)] == [BLOCK + 1] * 3


def test_sets_follow_the_real_process(task):
    n = 1000 if len(task.x_shape) == 3 else 4000
    with seeded(0):
        theta = task.prior.sample((n,))
        y = task.observe(theta)
    for ours, fresh in zip(task.calibration_set(n, seed=0), (theta, y), strict=True):
        error = ours.std(0) * math.sqrt(2 / n)
        assert ((ours.mean(0) - fresh.mean(0)).abs() <= 5 * error).all()  # both are 0 where nothing varies


def test_noise_is_fresh_and_seedable(task):
    theta = task.prior.sample((5,))
    for process, noisy in ((task.simulator, task.simulator_is_noisy), (task.observe, True)):
        assert torch.equal(process(theta), process(theta)) != noisy
        with seeded(1):
            first = process(theta)
        with seeded(1):
            assert torch.equal(process(theta), first)


def test_bad_theta_is_refused(task):
    theta = task.prior.sample((4,))
    for process in (task.simulator, task.observe):
        with pytest.raises(ValueError, match="shape"):
            process(theta[0])
        with pytest.raises(ValueError, match="shape"):
            process(torch.cat([theta, theta], 1))
        for value in (math.nan, math.inf):
            bad = theta.clone()
            bad[1, 0] = value
            with pytest.raises(ValueError, match="finite"):
                process(bad)


@pytest.mark.parametrize("row", [(-0.01, 1.0), (3.01, 1.0), (1.0, 0.4), (1.0, 10.1)])
def test_theta_outside_the_support_is_refused(row):
    task = tasks.get("pendulum")
    for process in (task.simulator, task.observe):
        with pytest.raises(ValueError, match="1 of 2 rows outside the prior's support"):
            process(torch.tensor([(1.0, 1.0), row]))


@pytest.mark.parametrize("side", SIDES)
def test_reference_contract(task, side):
    _, y = task.test_set(2, seed=0)
    state = torch.get_rng_state()
    reference = task.reference_posterior(y[0], side=side)
    draws = reference.sample((3, 40), seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert draws.shape == (3, 40, len(task.theta_names))
    assert draws.dtype == torch.float32
    assert task.prior.support.check(draws).all()
    assert torch.equal(task.reference_posterior(y[:1], side=side).sample([3, 40], seed=5), draws)
    # to the light tunnel's simulator, an image that is as bright as can be was painted by one θ alone
    painted_by_one = task.name == "light-tunnel" and side == "simulator" and y[0].max() == 1
    assert torch.equal(reference.sample((3, 40), seed=6), draws) == painted_by_one
    assert reference.sample(()).shape == (len(task.theta_names),)
    assert reference.sample((0,)).shape == (0, len(task.theta_names))


def test_bad_observations_are_refused(task):
    _, y = task.test_set(2, seed=0)
    with pytest.raises(ValueError, match="one row"):
        task.reference_posterior(y)
    with pytest.raises(ValueError, match="NaN"):
        task.reference_posterior(y[0] * math.nan)
    with pytest.raises(ValueError, match="'real' or 'simulator'"):
        task.reference_posterior(y[0], side="imaginary")
    with pytest.raises(ValueError, match="at least one"):
        task.calibration_set(0, seed=0)


def test_unknown_names_and_missing_references_say_so():
    with pytest.raises(ValueError, match=r"^Expected one of .*'gaussian'.*, got 'gausian'\. Try"):
        tasks.get("gausian")

    class Measured(tasks.Offset):
        _reference = Task._reference

    with pytest.raises(NotImplementedError, match="no reference posterior on the real side"):
        Measured().reference_posterior(torch.zeros(1))


@pytest.mark.parametrize("side", SIDES)
def test_ranks_are_uniform(task, side):
    slow = task.name == "pendulum" or (task.name, side) == ("light-tunnel", "real")
    pairs = 24 if slow else 300
    assert min(rank_p_values(task, side, pairs)) > 1e-3


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gaussian-prior", {"delta": -1.0, "alpha": 0.5}),
        ("wind-tunnel-prior", {"tau": 0.5}),
        ("gaussian-ci", {"alpha": 0.0}),
        ("gaussian-ci", {"alpha": 5.0}),
    ],
)
def test_ranks_are_uniform_with_other_options(name, options, side):
    assert min(rank_p_values(tasks.get(name, **options), side, 150)) > 1e-3


# With large noise the prior of A decides, and a wrong volume element of (A, φ) shows; with the default it cannot.
# Twenty-four pairs of the default are in `test_ranks_are_uniform`.
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default", marks=pytest.mark.nightly),
        pytest.param({"amplitude_range": (0.1, 3.0), "noise_std": 4.0}, id="noisy"),
    ],
)
def test_pendulum_ranks_are_uniform(side, options):
    assert min(rank_p_values(tasks.get("pendulum", **options), side, 200)) > 1e-3


@pytest.mark.nightly  # 24 pairs of it are in `test_ranks_are_uniform`
def test_light_tunnel_ranks_are_uniform():
    assert min(rank_p_values(tasks.get("light-tunnel"), "real", 200)) > 1e-3


BOTH_SIDES_DIFFER = ["gaussian", "offset", "wind-tunnel", "gaussian-prior", "gaussian-ci"]


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, side) for name in BOTH_SIDES_DIFFER for side in SIDES] + [("wind-tunnel-prior", "real")],
)
def test_wrong_side_fails_the_rank_test(name, side):
    task = tasks.get(name)
    exact = task._reference
    task._reference = lambda y, side: exact(y, "simulator" if side == "real" else "real")
    pairs = 60 if name == "gaussian-ci" else 300  # its wrong posteriors lie far outside the box, and are slow to draw
    assert min(rank_p_values(task, side, pairs)) < 1e-6


def small_gaussian() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(3, 3))
    return {
        "prior_loc": np.array([0.5, -1.0]),
        "prior_cov": np.array([[1.0, 0.3], [0.3, 0.5]]),
        "A": rng.normal(size=(3, 2)),
        "b": rng.normal(size=3),
        "lik_cov": factor @ factor.T + np.eye(3),
        "C": 1 + rng.normal(size=(3, 3)),
        "d": rng.normal(size=3),
        "noise_cov": 0.5 * np.eye(3),
    }


def test_gaussian_reference_against_importance_sampling(tmp_path):
    """Data are built from two noises, as the real process is described, and not from its marginal covariance."""
    m = small_gaussian()
    np.savez(tmp_path / "matrices.npz", **m)
    task = tasks.Gaussian.from_npz(tmp_path / "matrices.npz")
    t = {key: torch.tensor(value, dtype=torch.float64) for key, value in m.items()}
    prior = MultivariateNormal(t["prior_loc"], t["prior_cov"])
    with seeded(0):
        theta = prior.sample((400_000,))
        x = theta @ t["A"].T + t["b"] + MultivariateNormal(torch.zeros(3).double(), t["lik_cov"]).sample((400_000,))
        y = task.observe(prior.sample((1,)).float())[0].double()
    weights = torch.softmax(MultivariateNormal(x @ t["C"].T + t["d"], t["noise_cov"]).log_prob(y), 0)
    mean = weights @ theta
    cov = (theta - mean).T @ (weights[:, None] * (theta - mean))
    reference = task.reference_posterior(y)
    error = 5 * float((weights**2).sum().sqrt())
    assert torch.allclose(reference.mean, mean, atol=error)
    assert torch.allclose(reference.cov, cov, atol=2 * error)


@pytest.mark.parametrize("side", SIDES)
def test_gaussian_log_prob_is_bayes_rule(side):
    """Differences of log density are those of prior plus likelihood, and the draws have that density's moments."""
    m = small_gaussian()
    task = tasks.Gaussian(matrices=m)
    B, c, R = m["A"], m["b"], m["lik_cov"]
    if side == "real":
        B, c, R = m["C"] @ B, m["C"] @ c + m["d"], m["C"] @ R @ m["C"].T + m["noise_cov"]
    theta = task.prior.sample((50,)).double()
    y = task.observe(theta[:1].float())[0]
    likelihood = MultivariateNormal(theta @ torch.tensor(B).T + torch.tensor(c), torch.tensor(R)).log_prob(y.double())
    prior = MultivariateNormal(torch.tensor(m["prior_loc"]), torch.tensor(m["prior_cov"])).log_prob(theta)
    reference = task.reference_posterior(y, side=side)
    difference = reference.log_prob(theta) - (likelihood + prior).float()
    assert difference.std() < 1e-4
    draws = reference.sample((20_000,), seed=0).double()
    assert torch.allclose(draws.T.cov(), reference.cov, atol=0.05)


def test_gaussian_archive_without_a_matrix_is_refused(tmp_path):
    matrices = small_gaussian()
    del matrices["C"]
    np.savez(tmp_path / "broken.npz", **matrices)
    with pytest.raises(ValueError, match=r"^Expected matrices .*, got none for C\. Add"):
        tasks.Gaussian.from_npz(tmp_path / "broken.npz")


def test_offset_bias_is_lambda_with_much_data():
    task = tasks.get("offset", lam=0.7, num_measurements=2000)
    y = task.observe(torch.tensor([[0.4]]))[0]
    means = {side: float(task.reference_posterior(y, side=side).mean) for side in SIDES}
    assert means["real"] == pytest.approx(0.4, abs=0.05)
    assert means["real"] - means["simulator"] == pytest.approx(0.7, abs=1e-3)
