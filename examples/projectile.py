"""A projectile with drag.

The model is a parabola in vacuum: speed and angle of a launch from twenty positions along the flight, tracked by a
camera. The real ball has quadratic drag. Twenty-five launches at known settings of the launcher correct the posterior.

    python examples/projectile.py [--quick] [--out examples/out]
"""

import argparse
import math
from pathlib import Path

import torch
from sbi.utils import BoxUniform

import fmcpe
from fmcpe.diagnostics.plots import before_after

NAMES = ("speed [m/s]", "angle [°]")
GRAVITY, DRAG, NOISE = 9.81, 0.02, 0.2  # m/s², 1/m, m
TIMES = torch.linspace(0.1, 2.0, 20)  # seconds
PRIOR = BoxUniform(torch.tensor([10.0, 20.0]), torch.tensor([30.0, 70.0]))


def launch(theta):
    """Initial velocity, (N, 2): horizontal and vertical."""
    angle = theta[:, 1] * math.pi / 180
    return theta[:, :1] * torch.stack([angle.cos(), angle.sin()], dim=1)


def tracked(positions):
    """Positions (N, 20, 2) as the camera sees them, in one row."""
    return (positions + NOISE * torch.randn_like(positions)).flatten(1)


def model(theta):
    """A parabola: (N, 2) -> (N, 40)."""
    positions = launch(theta)[:, None] * TIMES[:, None]
    positions[..., 1] -= GRAVITY / 2 * TIMES**2
    return tracked(positions)


def reality(theta, steps=10):
    """The same launch with drag -c|v|v, by Heun's method."""
    velocity, position, out = launch(theta), torch.zeros(len(theta), 2), []
    dt = float(TIMES[0]) / steps

    def acceleration(v):
        return -DRAG * v.norm(dim=1, keepdim=True) * v - torch.tensor([0.0, GRAVITY])

    for _ in TIMES:
        for _ in range(steps):
            first = acceleration(velocity)
            second = acceleration(velocity + dt * first)
            position = position + dt * velocity + dt**2 / 2 * first
            velocity = velocity + dt / 2 * (first + second)
        out.append(position)
    return tracked(torch.stack(out, dim=1))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller budget, to test that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder for the picture")
    options = parser.parse_args(arguments)
    simulations, pairs, tests = (2000, 25, 100) if options.quick else (10_000, 25, 300)
    recipe = fmcpe.Stack(repeats=1) if options.quick else "default"

    torch.manual_seed(0)
    theta = PRIOR.sample((pairs,))
    theta_test = PRIOR.sample((tests,))
    y, y_test = reality(theta), reality(theta_test)

    base = fmcpe.train_npe(model, PRIOR, simulations, seed=0, show_progress_bars=False)
    posterior = fmcpe.FMCPE(base, model, recipe=recipe, names=NAMES).fit(theta, y, seed=0, show_progress_bars=False)
    print(posterior.summary())

    before = fmcpe.baselines.NPE(base).fit().sample_batched((500,), x=y_test, seed=0, show_progress_bars=False)
    after = posterior.sample_batched((500,), x=y_test, seed=0, show_progress_bars=False)
    was, now = ((each.mean(0) - theta_test).abs().mean(0) for each in (before, after))
    had, has = (fmcpe.diagnostics.coverage(each, theta_test, levels=[0.9]).central[0] for each in (before, after))

    options.out.mkdir(parents=True, exist_ok=True)
    before_after(before, after, theta_test, NAMES, level=0.9).savefig(options.out / "projectile.png", dpi=150)
    print(
        f"\nWe corrected the posterior of a model without drag with {pairs} launches at known settings (FMCPE, fmcpe "
        f"{fmcpe.__version__}). On {tests} further launches the mean absolute error fell from {was[0]:.2f} to "
        f"{now[0]:.2f} m/s for the speed and from {was[1]:.2f} to {now[1]:.2f} degrees for the angle, and the 90 % credible "
        f"intervals contained the true values in {has[0]:.0%} and {has[1]:.0%} of the launches ({had[0]:.0%} and "
        f"{had[1]:.0%} without the correction)."
    )


if __name__ == "__main__":
    main()
