"""An SIR epidemic: new cases per day."""

from __future__ import annotations

import torch
from sbi.utils import BoxUniform
from torch import Tensor

from fmcpe.tasks.zoo.family import Constants, Family, integrate


class SIR(Family):
    """Contact rate, removal rate and initially infected fraction. Missing physics: contacts fall with prevalence."""

    name = "sir"
    physics = "contacts that fall as prevalence rises"
    is_series = True

    def __init__(self, draw: Constants) -> None:
        days = draw.integer(40, 70)
        self.theta_names, self.shape = ("β", "γ", "log₁₀ I₀"), (days,)
        self.prior = BoxUniform(torch.tensor([0.25, 0.08, -4.0]), torch.tensor([0.8, 0.22, -2.0]))
        self.noise = draw.uniform(0.2, 0.5)

    def response(self, theta: Tensor, extra: Tensor) -> Tensor:
        beta, gamma, infected = theta[:, 0], theta[:, 1], 10 ** theta[:, 2]
        caution = 20 * extra[:, 0]

        def velocity(state: Tensor, t: float) -> Tensor:
            s, i = state[0], state[1]
            new = beta * s * i / (1 + caution * i)
            return torch.stack([-new, new - gamma * i, new])

        start = torch.stack([1 - infected, infected, torch.zeros_like(infected)])
        cases = integrate(velocity, start, 1.0, self.shape[0], substeps=2)[2].diff(dim=-1, prepend=start[2][:, None])
        return (1e4 * cases.clamp_min(0)).log1p()  # cases per ten thousand, on a log scale
