"""The picture of docs/flows.md: the two flows of the paper's recipe, trained on a problem of two numbers and two parameters.

    θ ~ N(0, I),   x = θ + 0.35 ε (simulator),   y = R θ + (1.8, 0.6) + 0.35 ε (reality), R a rotation by 50°

p̂ is the exact posterior of the simulator, and the exact posterior of the real process is drawn beside what the flows give.

python benchmarks/flows_picture.py docs/images
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor
from torch.distributions import MultivariateNormal

from fmcpe import FMCPE
from fmcpe._random import seeded
from fmcpe.candidates.joint_flow import JointFlowed
from fmcpe.tasks.plots import BLUE, ORANGE, small_png, write_pictures

PAIRS, DRAWS, SHOWN, NOISE = 300, 400, 40, 0.35
ANGLE, SHIFT = math.radians(50), torch.tensor([1.8, 0.6])
TURN = torch.tensor([[math.cos(ANGLE), -math.sin(ANGLE)], [math.sin(ANGLE), math.cos(ANGLE)]])
PRIOR = MultivariateNormal(torch.zeros(2), torch.eye(2))
GAIN = 1 / (1 + NOISE**2)  # of both exact posteriors: mean GAIN · θ̂, standard deviation NOISE · GAIN^½
THETA = torch.tensor([0.6, 1.1])
GREY = "#888888"


def simulator(theta: Tensor) -> Tensor:
    """The model."""
    return theta + NOISE * torch.randn_like(theta)


def reality(theta: Tensor) -> Tensor:
    """What is measured."""
    return theta @ TURN.T + SHIFT + NOISE * torch.randn_like(theta)


def base(x: Tensor) -> Tensor:
    """The simulator's exact posterior, one draw per row."""
    return GAIN * x + NOISE * GAIN**0.5 * torch.randn_like(x)


def paths(velocity: Callable[[Tensor, Tensor], Tensor], start: Tensor, solver_steps: int) -> Tensor:
    """Points along the flow from each start (n, D), by the steps of the solver: (steps + 1, n, D)."""
    points, h = [start], 1 / solver_steps
    for k in range(solver_steps):
        points.append(points[-1] + h * velocity(torch.tensor(k * h), points[-1]))
    return torch.stack(points)


def picture() -> Figure:
    """Left: data space, y to x̃. Right: parameter space, p̂(θ|x̃) to p(θ|y)."""
    with seeded(0):
        theta = PRIOR.sample((PAIRS,))
        y_cal = reality(theta)
        posterior = FMCPE(base, simulator, PRIOR, recipe="paper").fit(theta, y_cal, seed=0, show_progress_bars=False)
    y = (THETA @ TURN.T + SHIFT)[None] + torch.tensor([[0.1, -0.1]])
    with seeded(1), torch.no_grad():
        chain = posterior.inner
        assert isinstance(chain, JointFlowed) and chain.u_x is not None and chain.u_theta is not None
        condition, steps = chain.condition(y), chain.solver.steps
        u_x, u_theta = (
            (lambda t, z, net=field.u: net(t, z, net.embed(condition).expand(len(z), -1)))
            for field in (chain.u_x, chain.u_theta)
        )
        x_0 = chain.draw_x0(condition, DRAWS)[0]
        x_path = paths(u_x, x_0, steps)
        z_0 = chain.space.to_z_safely(base(chain.x_scale.inverse(x_path[-1])))
        theta_path = chain.space.to_theta(paths(u_theta, z_0, steps).flatten(0, 1)).unflatten(0, (steps + 1, DRAWS))

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _flow(left, x_path, "source x₀ ~ N(y, σ²I)", "x̃, where the simulator would put y")
    left.plot(*condition[0], "*", color="black", ms=12, label="observation y")
    centre, edge = chain.x_scale(torch.stack([THETA, THETA + NOISE]))
    _circle(left, centre, edge - centre, "simulations at the true θ (90 %)")
    left.set(xlabel="first number, standardised", ylabel="second number, standardised", title="u_X moves the data")
    _flow(right, theta_path, "source θ₀ ~ p̂(θ | x̃)", "corrected draws of p(θ | y)")
    right.plot(*THETA, "k+", ms=12, mew=2, label="true θ")
    _circle(right, GAIN * ((y[0] - SHIFT) @ TURN), torch.full((2,), NOISE * GAIN**0.5), "exact p(θ | y) (90 %)")
    right.set(xlabel="first parameter", ylabel="second parameter", title="u_Θ moves the parameters")
    for axes in (left, right):
        axes.set_aspect("equal", adjustable="datalim")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def _flow(axes: Axes, path: Tensor, source: str, target: str) -> None:
    lines = path[:, :SHOWN].numpy()
    for line in np.moveaxis(lines, 1, 0):
        axes.plot(*line.T, color=GREY, lw=0.6, alpha=0.7, zorder=1)
    axes.plot(*path[0].T, ".", color=ORANGE, ms=3, alpha=0.6, label=source)
    axes.plot(*path[-1].T, ".", color=BLUE, ms=3, alpha=0.6, label=target)


def _circle(axes: Axes, centre: Tensor, deviation: Tensor, label: str) -> None:
    """The central 90 % of a normal distribution with independent coordinates."""
    width, height = (2 * deviation * math.sqrt(2 * math.log(10))).tolist()
    axes.add_patch(Ellipse(tuple(centre.tolist()), width, height, fill=False, ls="--", lw=1.4, label=label))


def pictures() -> Iterator[tuple[str, bytes]]:
    """The file and its content."""
    yield "flows.png", small_png(picture(), 110, 64)


if __name__ == "__main__":
    sys.exit(write_pictures(sys.argv[1:], "python benchmarks/flows_picture.py docs/images", pictures))
