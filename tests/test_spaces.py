"""The map between physical and unconstrained parameters."""

import pytest
import torch
from sbi.utils import BoxUniform, MultipleIndependent
from torch.distributions import (
    Categorical,
    Cauchy,
    Dirichlet,
    Exponential,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    constraints,
)

from fmcpe import FMCPE, train_npe
from fmcpe.spaces import ParameterSpace, Standardiser

PRIORS = {
    "box": BoxUniform(torch.tensor([0.0, 0.5]), torch.tensor([3.0, 10.0])),
    "gaussian": MultivariateNormal(torch.tensor([1.0, -5.0]), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
    "mixed": MultipleIndependent([Normal(torch.zeros(1), torch.ones(1)), Exponential(torch.ones(1))]),
}


@pytest.fixture(params=PRIORS)
def space(request):
    torch.manual_seed(0)
    prior = PRIORS[request.param]
    return ParameterSpace(prior, prior.sample((1000,)))


def test_round_trip_and_statistics(space):
    theta = space.prior.sample((500,))
    z = space.to_z(theta)
    assert torch.allclose(space.to_theta(z), theta, rtol=1e-4, atol=1e-4)
    assert float(z.mean().abs()) < 0.15
    assert float(z.std(0).sub(1).abs().max()) < 0.15


def test_jacobian_is_that_of_the_map(space):
    theta = space.prior.sample((5,))
    for row in theta:
        jacobian = torch.autograd.functional.jacobian(lambda v: space.to_z(v[None])[0], row)
        expected = float(torch.linalg.slogdet(jacobian).logabsdet)
        assert float(space.log_abs_det(row[None])) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_any_z_maps_inside_the_support(space):
    z = torch.cat([torch.randn(1000, 2) * 30, torch.tensor([[1e3, -1e3], [-1e3, 1e3], [0.0, 0.0]])])
    if isinstance(space.prior, MultipleIndependent):
        z = z.clamp(-40, 40)  # beyond, exp() overflows to infinity, which no number of steps reaches
    assert bool(space.contains(space.to_theta(z)).all())


def test_a_measurement_on_the_bound_is_finite():
    prior = PRIORS["box"]
    space = ParameterSpace(prior, prior.sample((1000,)))
    z = space.to_z_safely(torch.tensor([[0.0, 10.0], [3.0, 0.5]]))
    assert bool(torch.isfinite(z).all())
    assert bool((z.abs() <= space.limit).all())
    inside = prior.sample((2000,))
    assert torch.equal(space.to_z_safely(inside), space.to_z(inside).clamp(-space.limit, space.limit))


def test_unbounded_parameters_are_never_moved():
    prior = PRIORS["gaussian"]
    space = ParameterSpace(prior, prior.sample((1000,)))
    far = torch.tensor([[60.0, -80.0]])
    assert torch.equal(space.to_z_safely(far), space.to_z(far))


def test_standardiser_leaves_constants_alone():
    data = torch.cat([torch.randn(100, 2) * 5 + 3, torch.full((100, 1), 7.0)], dim=1)
    scale = Standardiser(data)
    z = scale(data)
    assert torch.allclose(z.std(0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4)
    assert torch.allclose(scale.inverse(z), data, atol=1e-4)


class Bimodal(MixtureSameFamily):
    """As the error advises."""

    support = constraints.independent(constraints.real, 1)


TWO_MODES = Categorical(torch.ones(2)), MultivariateNormal(torch.tensor([[-4.0, 0.0], [4.0, 0.0]]), torch.eye(2))


@pytest.mark.parametrize(
    ("prior", "found"),
    [
        (Dirichlet(torch.ones(3)), "got Dirichlet"),
        (MixtureSameFamily(*TWO_MODES), "got MixtureSameFamily"),
        (Independent(Cauchy(torch.zeros(2), torch.ones(2)), 1), "got Independent"),
        (MultipleIndependent([Poisson(torch.ones(1)), Normal(torch.zeros(1), torch.ones(1))]), "got discrete ones"),
    ],
)
def test_priors_without_an_invertible_map_are_refused_before_anything_is_simulated(prior, found):
    def never(*arguments):
        raise AssertionError("simulated")

    def draws(x, n):
        return prior.sample((n,))

    for attempt in (lambda: train_npe(never, prior, 100), lambda: FMCPE(draws, never, prior)):
        with pytest.raises(ValueError, match=rf"support has an invertible map to R\^p, {found}"):
            attempt()


def test_a_mixture_with_the_advised_support_is_a_prior():
    prior = Bimodal(*TWO_MODES)
    space = ParameterSpace.of(prior)
    theta = prior.sample((100,))
    assert torch.allclose(space.to_theta(space.to_z(theta)), theta, atol=1e-5)
