"""The chambers: simulators against the causalchamber package, references against brute force."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import kstest, norm

import fmcpe
from fmcpe import baselines, tasks, train_npe
from fmcpe._random import seeded
from fmcpe.diagnostics import central_coverage
from fmcpe.tasks.light_tunnel_model import Camera, Photographs, hexagon
from fmcpe.tasks.wind_tunnel_model import DURATION, Impulse, Tunnel
from fmcpe.tasks.wind_tunnel_prior import HatchMixture

CORNERS = torch.tensor(
    [[r, g, b, a] for r in (0.0, 255.0) for g in (0.0, 255.0) for b in (0.0, 255.0) for a in (0.0, 1.0)]
)


@pytest.fixture
def models():
    """Models of the causalchamber package, which prints on import."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip("causalchamber")
        import causalchamber.models
    return causalchamber.models


def interval_coverage(task: tasks.Task, theta, data, side: str, draws: int = 200) -> torch.Tensor:
    """Share of each parameter's truths inside the central 90 % interval of the reference posterior."""
    with seeded(1):
        samples = torch.stack([task.reference_posterior(row, side=side).sample((draws,)) for row in data])
    low, high = samples.quantile(torch.tensor([0.05, 0.95]), dim=1)
    return ((theta >= low) & (theta <= high)).float().mean(0)


def test_wind_tunnel_equals_the_package(models):
    task = tasks.get("wind-tunnel")
    T, c_min, c_max, load_min, omega_max = 0.05, 0.166, 0.27, 0.1, 100 * math.pi

    def tau(load):
        load = np.atleast_1d(load)
        torque = T * (c_max - c_min) * np.maximum(load, load_min) ** 3
        torque[load == 0] = 0
        return torque if len(load) > 1 else torque[0]

    load_in, load_out = np.array([0.01] * 5 + [1.0] * 20 + [0.01] * 25), np.full(50, 0.5)
    hatch = torch.cat([torch.tensor([[0.0], [45.0]]), task.prior.sample((30,))])
    ours = task._impulses["simulator"].mean(hatch).float().numpy()
    for H, series in zip(hatch[:, 0].tolist(), ours, strict=True):
        theirs, _, _ = models.simulator_a2_c3(
            load_in, load_out, H, P_amb=0.0, I=0.5 * 0.059**2 * 0.02, tau=tau, C=tau(1) / omega_max**2,
            timestamps=np.linspace(0, 7.58541261, 50), omega_in_0=load_min * omega_max, omega_out_0=0.5 * omega_max,
            S_max=74.82473949999999, omega_max=omega_max, Q_max=186.7 / 3600, r_0=0.75, beta=0.15,
            barometer_error=0.0, barometer_precision=0.0,
        )  # fmt: skip
        assert np.abs(series - (theirs - theirs[0])).max() < 1e-4


def test_noise_of_the_wind_tunnel_is_fresh():
    task = tasks.get("wind-tunnel")
    theta = task.prior.sample((50_000,))
    x = task.simulator(theta)
    residual = x - task._impulses["simulator"].mean(theta)
    assert (residual[:, 0] == 0).all()
    covariance = residual[:, 1:].T.cov()  # the first reading's noise is in all the others
    expected = 0.04 * (torch.eye(49) + 1)
    assert torch.allclose(covariance, expected.double(), atol=0.003)


def test_wind_tunnel_with_the_hatch_fully_open_has_no_pressure():
    """Where r reaches 1 the quadratic formula divides by zero."""
    assert torch.equal(Impulse(Tunnel(r_0=0.9)).mean(torch.tensor([[45.0]])), torch.zeros(1, 50).double())


def test_light_tunnel_equals_the_package(models):
    task = tasks.get("light-tunnel")
    theta = torch.cat([CORNERS, task.prior.sample((20,))])
    for image, row in zip(task.simulator(theta).double(), theta.double().tolist(), strict=True):
        # The package truncates to integers; F1 is linear, so a scale makes that harmless.
        r, g, b = (1e7 * value for value in row[:3])
        angle = math.degrees(math.acos(math.sqrt(row[3])))
        theirs = models.model_f1(r, g, b, angle, 0.0, 0.5, 0.5, 0.22, 0.0, 64) / 1e7 / 255
        assert np.abs(image.numpy() - theirs).max() < 1e-6


def test_light_tunnel_stand_in_is_model_f3_plus_a_camera(models):
    camera = Camera(blur=0.0, dark=0.0, shot=0.0, read=1e-6)
    theta = torch.cat([CORNERS, tasks.get("light-tunnel").prior.sample((20,))])
    column = {"Tp": np.array([camera.passed]).T, "Tc": np.array([camera.leaked]).T}
    for image, row in zip(Photographs(camera).draw(theta), theta.double().tolist(), strict=True):
        theirs = models.model_f3(
            *row[:3], math.degrees(math.acos(math.sqrt(row[3]))), 0.0, np.array(camera.mixing), *camera.white_balance,
            camera.exposure, **column, center_x=0.5, center_y=0.5, radius=0.22, offset=0.0, image_size=64,
        )  # fmt: skip
        assert np.abs(image.numpy() - theirs).max() < 0.5 / 255 + 1e-4


# At a corner of (R, G, B, α) next to no level is possible, and the reference says so.
@pytest.mark.filterwarnings("ignore::fmcpe._errors.FMCPEWarning")
@pytest.mark.parametrize("name", ["wind-tunnel", "light-tunnel"])
def test_bounds_of_the_prior_are_fine(name):
    task = tasks.get(name)
    theta = CORNERS if name == "light-tunnel" else torch.tensor([[0.0], [45.0]])
    for process in (task.simulator, task.observe):
        assert torch.isfinite(process(theta)).all()
    for side in ("real", "simulator"):
        with seeded(0):
            y = task.observe(theta)
        for row in y:
            draws = task.reference_posterior(row, side=side).sample((50,), seed=0)
            assert task.prior.support.check(draws).all()
            # to F1, an image that is as bright as can be was painted by one θ alone
            assert len(draws.unique(dim=0)) > 1 or (side == "simulator" and row.max() == 1)


@pytest.mark.parametrize(("name", "options"), [("wind-tunnel", {"seed": s}) for s in range(3)] + [("light-tunnel", {})])
def test_stand_ins_are_severe(name, options):
    """Uncorrected, 90 % intervals miss the truth in more than half of the cases; on simulations they do not."""
    task = tasks.get(name, **options)
    theta, y = task.test_set(300, seed=0)
    assert (interval_coverage(task, theta, y, "simulator") < 0.5).all()
    with seeded(0):
        x = task.simulator(theta)
    assert (interval_coverage(task, theta, x, "simulator") - 0.9).abs().max() < 0.07


@pytest.mark.parametrize(("name", "simulations"), [("wind-tunnel", 10_000), ("light-tunnel", 4_000)])
def test_stand_ins_are_severe_for_a_trained_posterior(name, simulations):
    """A base posterior that is trained on plain simulations, as those of the paper are."""
    task = tasks.get(name)
    theta, y = task.test_set(300, seed=0)
    with seeded(0):
        net, x = task.embedding_net(), task.simulator(theta)
    base = train_npe(
        task.simulator,
        task.prior,
        simulations,
        net,
        seed=0,
        max_num_epochs=8,
        domain_randomisation=False,
        show_progress_bars=False,
    )
    posterior = baselines.NPE(base, task.prior).fit()

    def coverage(data):
        draws = posterior.sample_batched((100,), x=data, seed=0, show_progress_bars=False)
        return central_coverage(draws, theta, 0.9)

    assert coverage(y).mean() < 0.5
    assert (coverage(x) - 0.9).abs().max() < 0.07


@pytest.mark.parametrize("truth", [0.0, 20.0, 44.0])
def test_wind_tunnel_reference_against_importance_sampling(truth):
    """Drifts and the first reading's error drawn one by one, and readings weighed as independent."""
    tunnel = Tunnel(drift_slope=0.3, drift_bow=1.0, sensor_noise=1.0, quantum=0.25, hatch_power=1.4)
    impulse, n = Impulse(tunnel), 400_000
    with seeded(3):
        y = impulse.draw(torch.tensor([[truth]]))[0]
        hatch = 45 * torch.rand(n, 1).double()
        slope, bow, first = 0.3 * torch.randn(n, 1), torch.randn(n, 1), math.sqrt(1 + 0.25**2 / 12) * torch.randn(n, 1)
    times = torch.linspace(0, DURATION, 50)
    drift = slope * times + bow * 4 * times * (DURATION - times) / DURATION**2
    residual = (y - impulse.mean(hatch) - drift + first)[:, 1:]
    weights = torch.softmax(-residual.square().sum(1) / 2 / (1 + 0.25**2 / 12), 0)
    task = tasks.get("wind-tunnel")
    task._impulses["real"] = impulse
    reference = task.reference_posterior(y)
    draws = reference.sample((20_000,), seed=0).double()
    error = 5 * math.sqrt(float((weights**2).sum()) + 1 / 20_000)
    for moment in (lambda h: h, torch.square):
        expected = weights @ moment(hatch)
        scale = (weights @ (moment(hatch) - expected) ** 2).sqrt()
        assert (moment(draws).mean(0) - expected).abs() < error * scale


def test_coarse_quantisation_is_noise_to_the_wind_tunnel_reference():
    impulse = Impulse(Tunnel(quantum=0.6))
    task = tasks.get("wind-tunnel")
    task._impulses["real"] = impulse
    with seeded(0):
        theta = task.prior.sample((400,))
        draws = torch.stack([task.reference_posterior(y).sample((200,)) for y in impulse.draw(theta)])
        ranks = ((draws < theta[:, None]).sum(1)[:, 0] + torch.rand(400)) / 201
    assert kstest(ranks, "uniform").pvalue > 1e-3
    assert kstest((2 * ranks - 1).abs(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("side", ["real", "simulator"])
def test_wind_tunnel_densities_are_normalised_and_drawn_from(tau, side):
    task = tasks.get("wind-tunnel-prior", tau=tau)
    low, high = (10.0, 20.0) if (tau, side) == (1.0, "simulator") else (0.0, 45.0)
    grid = torch.linspace(low, high, 45_001, dtype=torch.float64)[:, None]
    for truth in (10.0, 15.0, 30.0):
        with seeded(0):
            y = task.observe(torch.tensor([[truth]]))[0]
        reference = task.reference_posterior(y, side=side)
        log_density = reference.log_prob(grid).double()
        prior = task.prior if side == "real" else task.simulation_prior
        bayes = task._impulses[side].log_likelihood(y)(grid[:, 0]) + prior.log_prob(grid.float())
        likely = log_density > -20  # edges of the pieces are a matter of rounding
        assert (log_density - bayes)[likely].quantile(torch.tensor([0.01, 0.99]).double()).diff() < 1e-4
        density = log_density.exp()
        cdf = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density, grid[:, 0])])
        assert torch.isneginf(reference.log_prob(torch.tensor([[low - 0.01], [high + 0.01]]))).all()
        assert float(cdf[-1]) == pytest.approx(1, abs=2e-3)
        ranks = torch.from_numpy(
            np.interp(reference.sample((2000,), seed=0)[:, 0].numpy(), grid[:, 0].numpy(), cdf.numpy())
        )
        assert kstest(ranks, "uniform").pvalue > 1e-3


def test_hatch_mixture_is_a_prior_that_sbi_takes():
    prior = HatchMixture(0.5, (10.0, 20.0))
    with seeded(0):
        draws = prior.sample((40_000,))
    assert torch.allclose(draws.mean(0), prior.mean, atol=0.3)
    assert torch.allclose(draws.std(0), prior.stddev, atol=0.3)
    assert float(((draws >= 10) & (draws <= 20)).float().mean()) == pytest.approx(0.5 + 0.5 * 10 / 45, abs=0.02)
    grid = torch.linspace(0, 45, 45_001)[:, None]
    assert float(prior.log_prob(grid).exp().mean() * 45) == pytest.approx(1, abs=1e-3)
    task = tasks.get("wind-tunnel-prior", tau=0.5)
    base = fmcpe.train_npe(
        task.simulator, task.simulation_prior, 400, seed=0, max_num_epochs=1, show_progress_bars=False
    )
    assert base.sample((3,), x=task.observe(torch.tensor([[30.0]])), show_progress_bars=False).shape == (3, 1)
    with pytest.raises(ValueError, match=r"^Expected a number from 0 to 1, got tau=1\.5\. Pass"):
        tasks.get("wind-tunnel-prior", tau=1.5)


def test_camera_likelihood_is_that_of_its_pixels():
    photographs = Photographs(Camera())
    camera, profile = photographs.camera, photographs.profile.numpy()
    with seeded(0):
        image = photographs.draw(torch.tensor([[200.0, 30.0, 255.0, 0.9]]))[0].double()
    for k, level in enumerate(photographs.levels(torch.tensor([[200.0, 30.0, 255.0, 0.9]]))[0].tolist()):
        levels = torch.tensor([level, 0.998 * level, 1.003 * level], dtype=torch.float64)
        expected = []
        for v in levels.tolist():
            signal = camera.dark + v * profile
            pixel = norm(signal, np.sqrt(camera.shot * signal + camera.read**2))
            byte = (255 * image[:, :, k]).round().numpy()
            upper = np.where(byte == 255, 1.0, pixel.cdf((byte + 0.5) / 255))
            lower = np.where(byte == 0, 0.0, pixel.cdf((byte - 0.5) / 255))
            expected.append(np.log(upper - lower).sum())
        ours = photographs.log_likelihood(image[:, :, k])(levels).numpy()
        assert np.allclose(ours - ours[0], np.array(expected) - expected[0], atol=0.05)


def test_f1_reference_of_an_image_that_f1_paints():
    task = tasks.get("light-tunnel")
    theta = torch.tensor([[200.0, 100.0, 50.0, 0.6]])
    draws = task.reference_posterior(task.simulator(theta), side="simulator").sample((4000,), seed=0)
    assert torch.allclose(draws[:, :3] * draws[:, 3:], theta[:, :3] * theta[:, 3:], rtol=1e-4)
    brightest = 0.6 * 200 / 255
    cdf = (brightest**-2 - draws[:, 3] ** -2.0) / (brightest**-2 - 1)
    assert kstest(cdf, "uniform").pvalue > 1e-3
    assert int(hexagon().sum()) == int((task.simulator(theta)[0, :, :, 0] > 0).sum())
    for side in ("real", "simulator"):
        with pytest.raises(NotImplementedError, match="sample"):
            task.reference_posterior(task.simulator(theta), side=side).log_prob(theta)


@pytest.mark.parametrize("name", tasks.names())
def test_each_task_draws_itself(name):
    task = tasks.get(name)
    state = torch.get_rng_state()
    figure = task.plot()
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(figure, Figure)
    assert ("stand-in" in figure.get_suptitle()) == (task.real_side == "stand-in")
