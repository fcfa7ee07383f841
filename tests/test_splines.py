"""Zuko's spline flows asked in another way: the same numbers, and weights shared or not."""

import copy

import pytest
import torch
from zuko.flows import MAF, NSF

from fmcpe.base_posteriors.adapters import DensityBase
from fmcpe.nn.splines import natively


@pytest.fixture(params=[(2, {}), (4, {"randperm": True}), (5, {"passes": 2})])
def flow(request):
    numbers, options = request.param
    torch.manual_seed(0)
    flow = NSF(numbers, 3, bins=6, transforms=3, hidden_features=(16, 16), **options).eval()
    for weight in flow.parameters():  # far from the identity that it starts close to
        weight.data.mul_(2.0)
    return flow


def rows_for(flow):
    return 2.5 * torch.randn(400, flow.base.loc.numel()), torch.randn(400, 3)


@torch.no_grad()
def test_draws_are_made_of_latent_numbers_as_zuko_does_it(flow):
    latent, context = rows_for(flow)
    native = natively(flow)
    made = native(context).transform.inv(latent)
    torch.testing.assert_close(made, flow(context).transform.inv(latent), atol=2e-3, rtol=2e-3)
    # beyond the bound nothing is carried
    assert float((latent.abs() > 5).float().mean()) > 0.01


def test_a_draw_is_undone_by_the_density_and_can_be_differentiated(flow):
    latent, context = (rows.double() for rows in rows_for(flow))
    native = natively(flow.double())
    made = native(context).transform.inv(latent)
    torch.testing.assert_close(native(context).transform(made), latent)
    torch.testing.assert_close(native(context).log_prob(made), flow(context).log_prob(made))
    made.sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in native.parameters())


def test_weights_are_its_own_or_those_of_the_flow(flow):
    latent, context = rows_for(flow)
    own, shared = natively(flow), natively(flow, own_weights=False)
    before = own(context).log_prob(latent)
    for weight in flow.parameters():
        weight.data.mul_(1.3)
    flow.base.scale.mul_(2.0)
    torch.testing.assert_close(own(context).log_prob(latent), before)
    torch.testing.assert_close(shared(context).log_prob(latent), flow(context).log_prob(latent), atol=1e-3, rtol=1e-3)
    assert not torch.allclose(shared(context).log_prob(latent), before)


def test_other_flows_are_left_to_zuko():
    assert natively(MAF(3, 2)) is None
    assert natively(NSF(1, 2)) is None  # one number has none before it


def test_another_estimator_leaves_the_posterior_as_it_was(base_with_embedding):
    proposal, other = DensityBase(base_with_embedding), copy.deepcopy(base_with_embedding.posterior_estimator)
    kept = base_with_embedding.posterior_estimator
    made = proposal.with_estimator(other)
    assert made.estimator is other and proposal.estimator is kept
    assert base_with_embedding.posterior_estimator is base_with_embedding.potential_fn.posterior_estimator is kept


@torch.no_grad()
def test_weights_that_are_replaced_are_noticed(base_with_embedding):
    proposal = DensityBase(base_with_embedding).with_estimator(copy.deepcopy(base_with_embedding.posterior_estimator))
    theta, x = torch.zeros(4, 3, 2), torch.randn(4, *proposal.x_shape)
    before, net = proposal._log_density(theta, x), proposal.estimator.net
    net.load_state_dict({name: 1.1 * value for name, value in net.state_dict().items()}, assign=True)
    after = proposal._log_density(theta, x)
    assert not torch.allclose(after, before)
    seen = proposal.estimator.embedding_net(x)
    torch.testing.assert_close(after, net(seen).log_prob(theta.movedim(1, 0)).movedim(0, 1), atol=1e-3, rtol=1e-3)
