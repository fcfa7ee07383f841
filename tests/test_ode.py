"""Solvers: orders of convergence, exact inverses, log-determinants."""

import itertools
import math
import warnings

import pytest
import torch

from fmcpe._errors import FMCPEWarning
from fmcpe.flows.matching import matching_loss, transport
from fmcpe.flows.solvers import METHODS, Solver
from fmcpe.flows.velocity import DenseHead, EmbeddingHead, VelocityField
from fmcpe.nn.embeddings import embedding_for


def swirl(t, z):
    """A field with a closed-form solution: rotation by t² while growing like exp(t/2)."""
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=z.dtype)
    return 2 * t * z @ rotation.T + 0.5 * z


def swirl_solution(z):
    c, s = math.cos(1.0), math.sin(1.0)
    return math.exp(0.5) * z @ torch.tensor([[c, -s], [s, c]], dtype=z.dtype).T


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_order_of_convergence(method, order):
    z = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = [float((Solver(method, n).solve(swirl, z) - swirl_solution(z)).abs().max()) for n in (10, 20, 40)]
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.25)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0)])
def test_invert_undoes_solve_and_logdet_is_the_jacobian(method, start, end):
    solver = Solver(method, 12, start, end)
    z = torch.randn(15, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def field(t, z):
        return torch.tanh(z @ torch.tensor([[0.4, 1.1], [-0.9, 0.3]], dtype=z.dtype).T + t)

    out = solver.solve(field, z)
    back, logdet = solver.invert_with_logdet(field, out)
    assert torch.allclose(back, z, atol=1e-6)
    for row in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda v: solver.solve(field, v[None])[0], z[row])
        assert float(logdet[row]) == pytest.approx(float(torch.linalg.slogdet(jacobian).logabsdet), abs=1e-5)


def transported_back(u, z, context, solver):
    return solver.invert_with_logdet(lambda t, v: u(t, v, context), z)


@pytest.fixture
def network():
    torch.manual_seed(0)
    u = VelocityField(3, embedding_for((5,), 8), 8, (32, 32))
    with torch.no_grad():
        u.last.weight.mul_(8)  # an untrained field is nearly zero; make it one that moves things
    return u


@pytest.mark.parametrize("method", sorted(METHODS))
def test_backward_transport_inverts_forward(network, method):
    solver = Solver(method, 50)
    z, context = torch.randn(64, 3), network.embed(torch.randn(64, 5)).detach()
    with torch.no_grad():
        moved = transport(network, z, context, solver)
        assert float((moved - z).abs().mean()) > 0.1
        assert float((transported_back(network, moved, context, solver)[0] - z).abs().max()) < 1e-4


def test_logdet_approaches_the_integral_of_the_divergence(network):
    """DESIGN: log p(θ|y) = log π(θ_0|y) - ∫ div u dt; the discrete map's determinant converges to it."""
    z, context = torch.randn(16, 3), network.embed(torch.randn(16, 5)).detach()
    solver = Solver("rk4", 20)
    with torch.no_grad():
        moved = transport(network, z, context, solver)
        _, logdet = transported_back(network, moved, context, solver)

    steps, integral, here = 100, torch.zeros(16), z.clone()
    for k in range(steps):
        t = torch.tensor((k + 0.5) / steps)
        with torch.no_grad():
            middle = here + 0.5 / steps * network(t, here, context)
        middle.requires_grad_()
        velocity = network(t, middle, context)
        divergence = sum(
            torch.autograd.grad(velocity[:, i].sum(), middle, retain_graph=True)[0][:, i] for i in range(3)
        )
        integral += divergence / steps
        here = here + velocity.detach() / steps
    assert torch.allclose(logdet, integral, atol=2e-2)


def test_gradients_reach_every_parameter_of_a_field(network):
    loss = matching_loss(network, torch.randn(8, 3), torch.randn(8, 3), network.embed(torch.randn(8, 5))).mean()
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_a_field_too_steep_for_the_step_warns():
    with pytest.warns(FMCPEWarning, match="more steps"):
        Solver("euler", 1).invert_with_logdet(lambda t, z: 5 * torch.sin(20 * z), torch.randn(10, 2))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="euler"):
        Solver("magic")
    with pytest.raises(ValueError, match="at least 1"):
        Solver("euler", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Solver("rk4", 1)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0)])
def test_a_flow_of_many_dimensions_is_solved_in_the_hidden_space(method, ends):
    """The same map as the direct one, for a field with a linear entrance; with an embedding head it is the direct one."""
    torch.manual_seed(0)
    u = VelocityField(60, embedding_for((5,), 8), 8, (16, 24), DenseHead(60, 16)).double()
    with torch.no_grad():
        u.last.weight.mul_(8)
    z, context = torch.randn(7, 60).double(), u.embed(torch.randn(7, 5).double()).detach()
    solver = Solver(method, 5, *ends)
    with torch.no_grad():
        direct = solver.solve(lambda t, x: u(t, x, context), z)
        assert float((direct - z).abs().mean()) > 0.1
        assert torch.allclose(transport(u, z, context, solver), direct, atol=1e-10)
        assert float((transported_back(u, direct, context, solver)[0] - z).abs().max()) < 1e-4


def test_gradients_reach_every_weight_of_a_field_with_a_head():
    for head in (DenseHead(60, 16), EmbeddingHead((60,), 4)):
        u = VelocityField(60, embedding_for((5,), 8), 8, (16, 24, 24), head)
        matching_loss(u, torch.randn(4, 60), torch.randn(4, 60), u.embed(torch.randn(4, 5))).sum().backward()
        assert all(p.grad is not None and bool(p.grad.abs().max() > 0) for p in u.parameters())


def test_heads_see_the_time():
    z = torch.randn(3, 60)
    for head in (DenseHead(60, 16), EmbeddingHead((60,), 4)):
        assert not torch.allclose(head(torch.full((3, 1), 0.2), z), head(torch.full((3, 1), 0.7), z))
