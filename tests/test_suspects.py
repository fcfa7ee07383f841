"""Which pair is suspect: false alarms on clean pairs, and faults that are found."""

from types import SimpleNamespace

import torch

from fmcpe._random import seeded
from fmcpe.diagnostics import suspects
from fmcpe.record import HeldOut
from fmcpe.spaces import ParameterSpace

PRIOR = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), torch.ones(2)), 1)


def exact(number=30):
    """Pairs y = θ + 0.2 ε, and draws of their exact posterior."""
    theta = PRIOR.sample((number,))
    y = theta + 0.2 * torch.randn(number, 2)
    return theta, y


def fitted(theta, y):
    shrink = 1 / 1.04
    draws = shrink * y[:, None] + (0.04 * shrink) ** 0.5 * torch.randn(len(y), 64, 2)
    space = ParameterSpace(PRIOR, torch.cat([torch.full((1, 2), -(0.5**0.5)), torch.full((1, 2), 0.5**0.5)]))
    parameters = [SimpleNamespace(name=name) for name in ("a", "b")]
    flat = draws.reshape(-1, 2)
    z = space.to_z(flat).reshape(draws.shape)
    return SimpleNamespace(
        held_out=HeldOut(theta, z, None, y, None),
        space=space,
        record=SimpleNamespace(parameters=parameters),
        method="x",
    )


def test_clean_pairs_are_rarely_named():
    """At a level of 5 %, some pair of 30 is named in at most 15 of 100 repeats: binomial, p < 1e-4 at 5 %."""
    with seeded(0):
        named = sum(bool(suspects(fitted(*exact()))) for _ in range(100))
    assert named <= 15


def test_faults_are_found():
    """A y ten times too large, and two swapped rows that are 10 noise deviations apart, in 90 of 100 repeats."""
    found = {"tenfold": 0, "swapped": 0}
    with seeded(1):
        for _ in range(100):
            theta, y = exact()
            wrong = y.clone()
            wrong[3] = 10 * wrong[3].abs().clamp_min(0.5)
            found["tenfold"] += 3 in [each.pair for each in suspects(fitted(theta, wrong))]
            far = int((theta - theta[0]).norm(dim=1).argmax())
            swapped = theta.clone()
            swapped[[0, far]] = theta[[far, 0]]
            found["swapped"] += {0, far} <= {each.pair for each in suspects(fitted(swapped, y))}
    assert min(found.values()) >= 90, found


def test_a_suspect_says_what_to_check():
    with seeded(2):
        theta, y = exact()
        theta[5] = theta[5] + torch.tensor([0.0, 3.0])
        (first, *_) = suspects(fitted(theta, y))
    assert first.pair == 5 and first.parameter == "b" and first.high < first.value
    assert str(first).startswith("pair 5: b = ") and "Check that θ belongs to this y" in str(first)
