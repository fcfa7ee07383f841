"""The zoo: every problem keeps the tasks' contract, every kind does what its name says, references are the truth."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy.stats import ks_2samp, kstest

from fmcpe import tasks
from fmcpe._random import derive, seeded
from fmcpe.nn.describe import describe, describe_prior
from fmcpe.spaces import ParameterSpace
from fmcpe.tasks import zoo
from fmcpe.tasks.base import BLOCK
from fmcpe.tasks.zoo.family import Constants
from fmcpe.tasks.zoo.gallery import as_png, file_name
from fmcpe.tasks.zoo.kinds import KINDS, Lag
from fmcpe.tasks.zoo.reference import is_known
from fmcpe.tasks.zoo.severity import RANGES, SEVERITIES, SIMULATIONS, QuickPosterior, strength_for

EXACT = (
    "zoo/linear-none", "zoo/linear-noise-scale", "zoo/linear-correlated-noise", "zoo/oscillator-lag", "zoo/heat-heavy-tails",
    "zoo/enzyme-missing-physics", "zoo/enzyme-heteroscedastic", "zoo/kepler-nuisance", "zoo/transit-heteroscedastic",
)  # fmt: skip
"""Problems whose reference posterior is tested by rank uniformity."""


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of small operations: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_zoo_is_as_large_as_it_says():
    assert len(zoo.PROBLEMS) >= 12
    assert len(zoo.names()) >= 36
    assert set(zoo.DEVELOPMENT) | set(zoo.REPORTING) == set(zoo.PROBLEMS)
    assert not set(zoo.DEVELOPMENT) & set(zoo.REPORTING)
    assert abs(len(zoo.DEVELOPMENT) - len(zoo.REPORTING)) <= 1
    families = Counter(kind for kinds in zoo.PROBLEMS.values() for kind in kinds)
    assert set(families) == set(KINDS)
    assert {kind for kind, number in families.items() if number < 3} == set()
    assert set(zoo.names(zoo.DEVELOPMENT)) | set(zoo.names(zoo.REPORTING)) == set(zoo.names())


@pytest.mark.parametrize("name", zoo.names())
def test_every_problem_keeps_the_contract_of_tasks(name):
    task = tasks.get(name, seed=1)
    assert tasks.get(name, seed=1) is task
    assert task.name == name and task.real_side == "process" and tasks.find(name) is type(task)
    with seeded(0):
        theta = task.prior.sample((7,))
        for data in (task.simulator(theta), task.observe(theta), task.calibration_set(7, seed=0)[1]):
            assert data.shape == (7, *task.x_shape) and data.dtype == torch.float32
            assert bool(torch.isfinite(data).all())
    assert 1 <= theta.shape[1] == len(task.theta_names) <= 10
    net = task.embedding_net()
    assert (net is None) == (zoo.split(name)[0] not in zoo.SERIES + zoo.IMAGES)
    if net is not None:
        assert net(data).shape == (7, 16) and describe(net) is not None
    assert describe_prior(task.prior) is not None, "a posterior with this prior could not be saved"
    assert (task.simulation_prior is task.prior) == (task.kind.name != "prior-shift")
    assert task.severity in ("none" if task.kind.name == "none" else SEVERITIES)

    state = torch.get_rng_state()
    theta, y = task.calibration_set(BLOCK + 5, seed=3)
    smaller, test = task.calibration_set(9, seed=3), task.test_set(9, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(smaller[0], theta[:9]) and torch.equal(smaller[1], y[:9])
    assert not torch.equal(test[0], theta[:9])
    with pytest.raises(ValueError, match="shape"):
        task.simulator(theta[0])
    with pytest.raises(ValueError, match="finite"):
        task.simulator(theta * math.nan)


def test_a_name_is_a_distribution_of_problems():
    shapes = {tasks.get("zoo/linear-none", seed=seed).x_shape for seed in range(6)}
    sizes = {len(tasks.get("zoo/linear-none", seed=seed).theta_names) for seed in range(6)}
    severities = {tasks.get("zoo/enzyme-missing-physics", seed=seed).severity for seed in range(12)}
    assert len(shapes) > 2 and len(sizes) > 2 and severities == set(SEVERITIES)


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match="zoo/sir-nuisance"):
        tasks.get("zoo/sir-lag")
    with pytest.raises(ValueError, match="zoo"):
        tasks.get("unknown")


@pytest.mark.parametrize("name", [name for name in zoo.names() if not name.endswith("-none")])
def test_a_kind_of_strength_zero_is_the_identity(name):
    """The same noise gives the same data as the simulator; where noise is drawn otherwise, the same distribution."""
    task = tasks.get(name, seed=1)
    with seeded(0):
        theta = task.prior.sample((400,)).float()
    with seeded(1):
        simulated = task.simulator(theta)
    with seeded(1):
        observed = task.observe_at(theta, 0.0)
    if task.kind.name in ("nuisance", "correlated-noise"):  # these draw random numbers of their own first
        p = ks_2samp(
            (simulated - simulated.mean()).flatten()[:20000], (observed - observed.mean()).flatten()[:20000]
        ).pvalue
        assert p > 1e-3
    else:
        assert torch.allclose(simulated, observed, atol=1e-5)
    with seeded(1):
        assert not torch.allclose(task.observe(theta), simulated, atol=1e-3) or task.kind.name == "prior-shift"


@pytest.mark.parametrize("name", [name for name in zoo.names() if name.endswith("-none")])
def test_the_two_sides_of_a_control_have_the_same_distribution(name):
    task = tasks.get(name, seed=2)
    with seeded(0):
        theta = task.prior.sample((2000,))
        x, y = task.simulator(theta).flatten(1), task.observe(task.prior.sample((2000,))).flatten(1)
    values = [ks_2samp(x[:, k], y[:, k]).pvalue for k in range(0, x.shape[1], max(1, x.shape[1] // 8))]
    assert min(values) > 1e-3 / len(values)
    assert task.severity == "none" and task.strength == 0


def test_kinds_do_what_their_names_say():
    """Against closed forms, on a step, a ramp and a constant."""
    task = tasks.get("zoo/oscillator-lag", seed=1)
    step = torch.cat([torch.zeros(1, 1), torch.ones(1, 59)], dim=1)
    lagged = task.kind.signal(step, 5.0)
    assert torch.allclose(lagged, 1 - torch.exp(-torch.arange(60) / 5.0)[None], atol=1e-5)
    ramp = torch.arange(60.0)[None]

    def kind(name):
        return next(tasks.get(n, seed=1).kind for n in zoo.names() if n.endswith("-" + name))

    assert torch.allclose(kind("clock-drift").signal(ramp, 0.25), 0.75 * ramp, atol=1e-4)
    sensor = kind("gain-offset")
    assert torch.allclose(sensor.signal(ramp, 2.0), math.exp(2 * sensor.gain) * ramp + 2 * sensor.offset)
    with seeded(0):
        zero = torch.zeros(20_000, 30)
        for name, expected in (("noise-scale", 3.0), ("correlated-noise", math.sqrt(1 + 2.0**2))):
            noisy = kind(name)
            assert float(noisy.noise(zero, 2.0).std() / noisy.family.noise) == pytest.approx(expected, rel=0.03), name
        correlated = kind("correlated-noise").noise(zero, 5.0)
        assert float(torch.corrcoef(correlated[:, 10:12].T)[0, 1]) == pytest.approx(0.9 * 25 / 26, abs=0.03)
        uneven = kind("heteroscedastic")
        loud = uneven.noise(zero + uneven.scale, 1.0).std() / uneven.noise(zero, 1.0).std()
        assert float(loud) == pytest.approx(2.0, rel=0.05)
        hit = (kind("outliers").data(zero, 0.4) != 0).double().mean()
        assert float(hit) == pytest.approx(0.2, abs=0.01)
    recorder = kind("saturation")
    top, levels = recorder.high - 0.5 * (recorder.high - recorder.low), 2 * recorder.LEVELS
    clipped = recorder.data(torch.linspace(recorder.low, 2 * recorder.high, 5000)[None], 0.5)
    assert len(clipped.unique()) == 1 + levels and float(clipped.max()) == pytest.approx(top, abs=1e-4)
    channels = tasks.get("zoo/linear-channels", seed=1).kind
    x = torch.randn(4, *channels.family.shape)
    seen = channels.signal(x, 1.0)
    others = [k for k in range(x.shape[1]) if k not in channels.dead.tolist()]
    assert torch.equal(seen[:, others], x[:, others])
    assert torch.equal(seen[:, channels.dead], torch.zeros_like(seen[:, channels.dead]) if channels.dies else
                       x[:, channels.dead].flip(-1))  # fmt: skip


def test_priors_shift_where_they_should():
    shifted = tasks.get("zoo/linear-prior-shift", seed=0)
    assert not torch.allclose(shifted.simulation_prior.mean, shifted.prior.mean)
    part = tasks.get("zoo/enzyme-calibration-shift", seed=0)
    calibration, test = part.calibration_set(500, seed=0)[0].log(), part.test_set(500, seed=0)[0].log()
    assert ks_2samp(calibration[:, 0], test[:, 0]).pvalue < 1e-3
    with seeded(0):
        assert ks_2samp(part.prior.sample((500,)).log()[:, 0], test[:, 0]).pvalue > 1e-3


@pytest.mark.parametrize("name", ["zoo/oscillator-lag", "zoo/enzyme-noise-scale", "zoo/kepler-nuisance"])
def test_the_stand_in_for_a_base_posterior_is_calibrated_on_simulations(name):
    """Coverage at strength 0 is nominal: what severity is measured by has no fault of its own."""
    task = tasks.get(name, seed=1)
    with seeded(5):
        theta, test = task.prior.sample((SIMULATIONS,)).float(), task.prior.sample((2000,)).float()
        space = ParameterSpace(task.prior, theta)
        quick = QuickPosterior(space.to_z_safely(theta), task.simulator(theta))
        assert quick.coverage(space.to_z_safely(test), task.simulator(test)) == pytest.approx(0.9, abs=0.03)


def test_the_smallest_strength_that_is_enough_is_found():
    assert strength_for(0.5, 16.0, lambda s: 1 - s / 4) == pytest.approx(2.0, rel=0.03)
    # where coverage rises again beyond
    assert strength_for(0.5, 16.0, lambda s: abs(1 - s / 4)) == pytest.approx(2.0, rel=0.03)
    assert strength_for(0.1, 1.0, lambda s: 0.5) is None


def rank_p_values(task, side, pairs, draws=100):
    with seeded(derive(7, task.name, side)):
        theta = (task.prior if side == "real" else task.simulation_prior).sample((pairs,)).float()
        data = task.observe(theta) if side == "real" else task.simulator(theta)
        samples = torch.stack([task.reference_posterior(row, side=side).sample((draws,)) for row in data])
        u = ((samples < theta[:, None]).sum(1) + torch.rand(theta.shape)) / (draws + 1)
    columns = torch.cat([u, (2 * u - 1).abs()], 1).T.numpy()
    return [float(kstest(column, "uniform").pvalue) for column in columns]


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [24, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", EXACT)
def test_ranks_of_reference_posteriors_are_uniform(name, pairs):
    assert min(rank_p_values(tasks.get(name, seed=1), "real", pairs)) > 1e-3


def test_the_reference_of_a_linear_problem_is_the_conjugate_one():
    """Mean and covariance in closed form, with gain, offset and a correlated noise."""
    for name in ("zoo/linear-gain-offset", "zoo/linear-correlated-noise"):
        task = tasks.get(name, seed=3)
        y, p = task.test_set(1, seed=0)[1][0], len(task.theta_names)
        family, kind, s = task.family, task.kind, task.strength
        gain, offset = (math.exp(s * kind.gain), s * kind.offset) if name.endswith("offset") else (1.0, 0.0)
        B, c = (gain * family.matrix).double(), (gain * family.offset + offset).double()
        R = family.noise**2 * torch.eye(len(c)).double()
        if name.endswith("noise"):
            places = torch.arange(len(c))
            R = R + family.noise**2 * s**2 * kind.KEPT ** (places[:, None] - places).abs().double()
        precision = torch.eye(p).double() + B.T @ torch.linalg.solve(R, B)
        mean = torch.linalg.solve(precision, B.T @ torch.linalg.solve(R, y.double() - c))
        covariance = torch.linalg.inv(precision)
        draws = task.reference_posterior(y).sample((4000,), seed=0).double()
        error = (draws.mean(0) - mean) / covariance.diagonal().sqrt()
        assert float(error.abs().max()) < 0.15, name
        assert torch.allclose(
            draws.T.cov() / covariance.diagonal().mean(), covariance / covariance.diagonal().mean(), atol=0.15
        )


def test_problems_without_a_density_have_no_reference():
    without = [name for name in zoo.names() if not is_known(tasks.get(name, seed=1), "real")]
    assert {tasks.get(name, seed=1).kind.name for name in without} >= {"outliers", "saturation"}
    assert len(zoo.names()) - len(without) >= 8
    task = tasks.get(without[0], seed=1)
    with pytest.raises(NotImplementedError, match="no reference posterior"):
        task.reference_posterior(task.test_set(1, seed=0)[1][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["zoo/linear-none", "zoo/linear-noise-scale", "zoo/heat-gain-offset", "zoo/enzyme-missing-physics", "zoo/g-and-k-outliers",
     "zoo/projectile-lag", "zoo/pharmacokinetics-missing-physics", "zoo/kepler-heavy-tails"],
)  # fmt: skip
def test_severity_is_what_a_trained_base_posterior_shows(name):
    """Coverage of its 90 % intervals on real data lies in the range that the severity states."""
    from fmcpe import baselines, train_npe
    from fmcpe.diagnostics import central_coverage

    task = tasks.get(name, seed=1)
    with seeded(0):
        net = task.embedding_net()
    base = train_npe(
        task.simulator, task.simulation_prior, 6000, net, seed=0, max_num_epochs=10, show_progress_bars=False,
        domain_randomisation=None if net is None else False,
    )  # fmt: skip
    theta, y = task.test_set(300, seed=0)
    draws = baselines.NPE(base, task.prior).fit().sample_batched((100,), x=y, seed=0, show_progress_bars=False)
    coverage, (low, high) = float(central_coverage(draws, theta, 0.9).mean()), RANGES[task.severity]
    assert low <= coverage <= high, (task.severity, coverage)


def test_lag_of_a_long_constant_is_that_constant():
    assert torch.allclose(Lag.signal(None, torch.full((2, 30), 3.0), 4.0), torch.full((2, 30), 3.0))


def test_the_gallery_has_a_picture_of_every_problem():
    docs = Path(__file__).parents[1] / "docs"
    text = (docs / "zoo.md").read_text()
    for name in zoo.names():
        assert (docs / "zoo" / file_name(name)).is_file() and f"(zoo/{file_name(name)})" in text, name
    assert len(list((docs / "zoo").glob("*.png"))) == len(zoo.names())


@pytest.mark.parametrize("name", ["zoo/enzyme-channels", "zoo/projectile-lag", "zoo/beam-saturation"])
def test_a_problem_can_be_drawn(name):
    problem = tasks.get(name, seed=0)
    assert as_png(problem).startswith(b"\x89PNG")
    assert len(problem.plot().axes) >= 3


def test_heavy_tails_are_heavy():
    """Student-t with two degrees of freedom: its median size is 0.816 of its scale, and 1 in 24 draws is beyond 4.7 scales."""
    problem = tasks.get("zoo/linear-none", seed=0)
    kind = KINDS["heavy-tails"](Constants(0, "test"), problem.family, 1.0)
    with seeded(0):
        sizes = kind.noise(torch.zeros(20_000, 2), 0.5).abs() / problem.family.noise
    assert float(sizes.median()) == pytest.approx(0.816, rel=0.03)
    assert float((sizes > 4.7).float().mean()) == pytest.approx(1 / 24, rel=0.1)


def test_a_recorder_keeps_at_least_sixteen_levels():
    for name in (name for name in zoo.names() if name.endswith("saturation")):
        problem = tasks.get(name, seed=zoo.SEEDS[zoo.half_of(name)])
        y = problem.test_set(300, seed=0)[1]
        clean = problem.observe_at(problem.test_set(300, seed=0)[0], 0.0)
        assert len(y.unique()) >= 16, name
        assert float(y.max()) < float(clean.max())


@pytest.mark.parametrize("seed", ["a", 1.5, None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises((TypeError, ValueError), match=r"whole number|seed"):
        tasks.get("zoo/linear-none", seed=seed)


@pytest.mark.parametrize("name", [name for name in zoo.names() if "gain-offset" in name or "calibration-shift" in name])
def test_a_sensor_still_shows_the_signal(name):
    """A gain of zero would leave nothing to infer."""
    problem = tasks.get(name, seed=zoo.SEEDS[zoo.half_of(name)])
    with seeded(0):
        response = problem.family.response(problem.prior.sample((200,)).float(), torch.zeros(200, 1))
    for strength in (problem.strength, 1.0, problem.kind.largest):
        assert float(problem.kind.signal(response, strength).std(0).max()) > 0.04 * float(response.std(0).max())
