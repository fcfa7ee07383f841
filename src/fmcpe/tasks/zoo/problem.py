"""A problem of the zoo: a family and a kind of misspecification, with constants and severity from a seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fmcpe._random import derive, seeded
from fmcpe.nn.embeddings import embedding_for, is_vector
from fmcpe.spaces import ParameterSpace
from fmcpe.tasks.base import BLOCK, Reference, Side, Stream, Task
from fmcpe.tasks.zoo.family import Constants, Family
from fmcpe.tasks.zoo.kinds import Kind
from fmcpe.tasks.zoo.severity import SEVERITIES, SIMULATIONS, TESTS, QuickPosterior, strength_for

_ATTEMPTS, _PERSISTENT = 20, 4
"""Draws of the constants until the misspecification has an effect (a dead channel may carry no information), and the number
of draws after which a milder severity is accepted."""


class Problem(Task):
    """One draw of a named distribution of problems.

    Args:
        name: The name, ``"zoo/FAMILY-KIND"``.
        family: The simulator family.
        kind: The kind of misspecification.
        seed: Seed of the constants of family and kind, and of the severity.

    Attributes:
        family: The family with its constants.
        kind: The kind with its constants.
        severity: ``"none"``, ``"mild"``, ``"moderate"`` or ``"severe"``.
        strength: Strength of the kind, chosen for the severity.
    """

    def __init__(self, name: str, family: type[Family], kind: type[Kind], seed: int = 0) -> None:
        self.name, self.seed = name, seed  # type: ignore[misc]
        wanted = Constants(seed, name, "severity").integer(0, len(SEVERITIES) - 1)
        for attempt in range(_ATTEMPTS):
            draw = Constants(seed, name, str(attempt))
            self.family = family(draw)
            self.theta_names, self.x_shape, self.prior = self.family.theta_names, self.family.shape, self.family.prior
            with seeded(derive(seed, name, "severity")):
                theta = self.prior.sample(torch.Size((SIMULATIONS,))).float()
                response = self.family.response(theta, torch.zeros(SIMULATIONS, 1))
                self.kind = kind(draw, self.family, float(response.std()))
                milder = attempt >= _PERSISTENT  # then accept a milder severity
                found = ("none", 0.0) if kind.largest == 0 else self._severity(theta, wanted, milder)
            if found is not None:
                break
        else:
            raise ValueError(
                f"Expected {name} with seed {seed} to reach mild severity, got none in {_ATTEMPTS} draws of its constants. Use "
                "another seed, or a larger strength for this kind."
            )
        self.severity, self.strength = found
        self._simulation_prior = self.kind.simulation_prior(self.prior, self.strength)

    @property
    def simulation_prior(self) -> Distribution:
        """The prior of the simulations."""
        return self._simulation_prior

    def embedding_net(self) -> nn.Module | None:
        """An embedding network for the shape of the data; None for vectors."""
        return None if is_vector(self.x_shape) else embedding_for(self.x_shape, 16)

    def observe_at(self, theta: Tensor, strength: float) -> Tensor:
        """Real data at another strength; at 0 they equal simulations."""
        response = self.family.response(theta, self.kind.extra(len(theta), strength))
        seen = self.kind.signal(response, strength)
        return self.kind.data(seen + self.kind.noise(seen, strength), strength)

    def _simulate(self, theta: Tensor) -> Tensor:
        response = self.family.response(theta, torch.zeros(len(theta), 1))
        return response + self.family.noise * torch.randn_like(response)

    def _observe(self, theta: Tensor) -> Tensor:
        return self.observe_at(theta, self.strength)

    def _pairs(self, n: int, stream: Stream, seed: int) -> tuple[Tensor, Tensor]:
        prior = self.kind.calibration_prior(self.prior, self.strength)
        if stream == "test" or prior is self.prior:
            return super()._pairs(n, stream, seed)
        blocks = []
        for k in range(-(-n // BLOCK)):
            with seeded(derive(seed, self.name, stream, k)):
                theta = prior.sample(torch.Size((BLOCK,))).float()
                blocks.append((theta, self._observe(theta)))
        theta, y = (torch.cat(parts)[:n] for parts in zip(*blocks, strict=True))
        return theta, y

    def _reference(self, y: Tensor, side: Side) -> Reference:
        from fmcpe.tasks.zoo.reference import TemperedReference, is_known

        if not is_known(self, side):
            return super()._reference(y, side)
        return TemperedReference(self, y, side)

    def _severity(self, theta: Tensor, wanted: int, milder: bool) -> tuple[str, float] | None:
        """The wanted severity, or with `milder` the next milder one that the kind reaches, and its strength."""
        space, number = ParameterSpace(self.prior, theta), int(torch.randint(2**31, ()))
        shifts_prior = self.kind.simulation_prior(self.prior, 1.0) is not self.prior
        quick = None if shifts_prior else QuickPosterior(space.to_z_safely(theta), self._simulate(theta))
        tests = self.prior.sample(torch.Size((TESTS,))).float()
        z = space.to_z_safely(tests)

        def coverage(strength: float) -> float:
            with seeded(number):  # the same noise at every strength
                posterior = quick
                if posterior is None:
                    prior = self.kind.simulation_prior(self.prior, strength)
                    simulated = prior.sample(torch.Size((SIMULATIONS,))).float()
                    posterior = QuickPosterior(space.to_z_safely(simulated), self._simulate(simulated))
                y = self.observe_at(tests, strength)
                return posterior.coverage(z, y) if bool(torch.isfinite(y).all()) else 1.0

        for severity in list(SEVERITIES)[wanted::-1] if milder else [list(SEVERITIES)[wanted]]:
            strength = strength_for(SEVERITIES[severity], self.kind.largest, coverage)
            if strength is not None:
                return severity, strength
        return None
