"""Files: whole or absent, data and never code."""

import json
import os
import pickle
from dataclasses import replace

import pytest
import torch
from conftest import PRIOR, TINY, observe, simulate
from file_edits import edit
from safetensors import safe_open
from safetensors.torch import save_file
from sbi.utils import BoxUniform, MultipleIndependent, process_prior
from torch import nn
from torch.distributions import Exponential, Independent, LogNormal, MultivariateNormal, Normal

import fmcpe
from fmcpe import FMCPE, baselines
from fmcpe.nn.describe import build, build_prior, describe, describe_prior
from fmcpe.nn.embeddings import embedding_for

Y = torch.tensor([1.0, 0.5, 1.2])


def manifest(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["fmcpe"])


def test_the_manifest_says_what_is_inside(posteriors, tmp_path):
    says = manifest(posteriors("joint").save(tmp_path / "run.fmcpe"))
    assert says["format"] == 7
    assert set(says["versions"]) == {"fmcpe", "torch", "sbi", "zuko"}
    assert says["posterior"]["solver"]["steps"] == TINY.steps
    assert (says["x_shape"], says["theta_dim"], says["report"]["num_pairs"]) == ([3], 2, 30)


def test_the_default_observation_travels_along(base, pairs, tmp_path):
    posterior = FMCPE(base, simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False).set_default_x(Y)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.sample((5,), seed=0), posterior.sample((5,), seed=0))


def test_a_posterior_from_outside_is_asked_for_again(pairs, tmp_path):
    def draw(x):
        return torch.stack([x[:, 0].clamp(-2, 2), torch.rand(x.shape[0])], dim=1)

    posterior = FMCPE(draw, simulate, PRIOR, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)
    path = posterior.save(tmp_path / "run.fmcpe")
    with pytest.raises(ValueError, match="posterior="):
        fmcpe.load(path)
    loaded = fmcpe.load(path, posterior=draw)
    assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))


def test_a_posterior_of_the_wrong_shape_is_refused(posteriors, tmp_path):
    path = posteriors("joint").save(tmp_path / "run.fmcpe")
    other = fmcpe.train_npe(lambda t: t.repeat(1, 2), PRIOR, 200, max_num_epochs=1, show_progress_bars=False)
    with pytest.raises(ValueError, match=r"θ of 2 number.* x of shape \(3,\)"):
        fmcpe.load(path, posterior=other)


class Own(nn.Module):
    """A network that no file can describe."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, y):
        return self.layer(y).tanh()


def test_an_embedding_of_ones_own_is_asked_for_again(base, pairs, tmp_path):
    method = FMCPE(base, simulate, recipe=replace(TINY, embedding_net=Own()))
    posterior = method.fit(*pairs, seed=0, show_progress_bars=False)
    path = posterior.save(tmp_path / "run.fmcpe")
    with pytest.raises(ValueError, match="embedding_net="):
        fmcpe.load(path)
    loaded = fmcpe.load(path, embedding_net=Own())
    assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))


def test_a_base_posterior_with_an_embedding_is_saved(pairs, tmp_path):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    base = fmcpe.train_npe(simulate, PRIOR, 500, net, seed=0, max_num_epochs=1, show_progress_bars=False)
    posterior = FMCPE(base, simulate, recipe=TINY).fit(*pairs, seed=0, show_progress_bars=False)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))


@pytest.mark.parametrize("passed", [False, True])
def test_the_posterior_behind_a_loaded_base_has_its_weights(base, tmp_path, passed):
    path = baselines.NPE(base).fit().save(tmp_path / "base.fmcpe")
    loaded = fmcpe.load(path, posterior=base if passed else None).shared.base
    expected, behind = base.posterior_estimator, loaded.posterior.posterior_estimator
    assert all(torch.equal(value, behind.state_dict()[name]) for name, value in expected.state_dict().items())
    assert loaded.estimator is not expected


def test_another_prior_of_the_pairs_travels_along(base, tmp_path):
    """Simulations from one prior, pairs from a wider one: answers keep the wider support after loading."""
    wide = BoxUniform(torch.tensor([-4.0, -1.0]), torch.tensor([4.0, 2.0]))
    theta = wide.sample((20,))
    y = torch.stack([theta[:, 0], 4 * theta[:, 1], theta.sum(1)], dim=1)
    method = FMCPE(base, lambda t: y[:1].expand(t.shape[0], -1) + torch.randn(t.shape[0], 3), prior=wide, recipe=TINY)
    posterior = method.fit(theta, y, seed=0, show_progress_bars=False)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.prior.support.base_constraint.lower_bound, torch.tensor([-4.0, -1.0]))
    assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))


@pytest.mark.parametrize("shape", [(5,), (60,), (2, 30), (3, 16, 16), (16, 16, 3)])
def test_the_librarys_embeddings_describe_themselves(shape):
    net = embedding_for(shape, 6)
    again = build(json.loads(json.dumps(describe(net))))
    again.load_state_dict(net.state_dict())
    y = torch.randn(2, *shape)
    assert torch.equal(net(y), again(y))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm1d(3, affine=False),
        nn.LayerNorm(3, elementwise_affine=False),
        nn.LSTM(3, 3),
    ],
)
def test_what_cannot_be_described_exactly_is_not_described(layer):
    says = describe(nn.Sequential(layer))
    assert says is None or repr(build(json.loads(json.dumps(says)))) == repr(nn.Sequential(layer))
    assert (says is None) == isinstance(layer, nn.LSTM)
    assert describe(nn.GELU(approximate="tanh"))["arguments"] == {"approximate": "tanh"}


@pytest.mark.parametrize(
    "prior",
    [
        MultipleIndependent([Normal(torch.zeros(1), torch.ones(1)), Exponential(torch.ones(1))]),
        Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1),
        MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double()),
    ],
)
def test_usual_priors_travel_along(prior):
    says, tensors = describe_prior(process_prior(prior)[0])
    again = build_prior(json.loads(json.dumps(says)), tensors)
    theta = torch.rand(5, 2)
    assert torch.allclose(again.log_prob(theta), prior.log_prob(theta).float(), atol=1e-5)


def test_files_can_be_read_by_colleagues(posteriors, tmp_path):
    umask = os.umask(0o022)
    try:
        assert posteriors("joint").save(tmp_path / "run.fmcpe").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(umask)
    with pytest.raises(FileNotFoundError, match="folder that exists"):
        posteriors("joint").save(tmp_path / "absent" / "run.fmcpe")


def test_loading_leaves_the_generator_alone(posteriors, tmp_path):
    path = posteriors("joint").save(tmp_path / "run.fmcpe")
    before = torch.get_rng_state()
    fmcpe.load(path)
    assert torch.equal(before, torch.get_rng_state())


def test_what_is_not_a_file_of_ours_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"posterior\.save"):
        fmcpe.load(tmp_path / "absent")
    junk = tmp_path / "junk.csv"
    for content in (b"\x00" * 100, b"mass,length,r_1\n1,2,3\n"):
        junk.write_bytes(content)
        with pytest.raises(fmcpe.FileError, match=r"a model saved by fmcpe, got .*junk.csv .*Did you swap the files\?"):
            fmcpe.load(junk)
    junk.write_bytes(b"mass")
    with pytest.raises(fmcpe.FileError, match=r"a whole file .*its header is longer than the file"):
        fmcpe.load(junk)
    save_file({"a": torch.zeros(1)}, tmp_path / "tensors")
    with pytest.raises(ValueError, match="no fmcpe manifest"):
        fmcpe.load(tmp_path / "tensors")
    save_file(
        {"a": torch.zeros(1)},
        tmp_path / "new",
        metadata={"fmcpe": json.dumps({"format": 99, "versions": {"fmcpe": "9"}})},
    )
    with pytest.raises(ValueError, match="Upgrade"):
        fmcpe.load(tmp_path / "new")


def test_a_pickle_is_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    path = tmp_path / "run.fmcpe"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="Did you swap"):
        fmcpe.load(path)
    torch.save(Bomb(), path)
    with pytest.raises(ValueError, match="Did you swap"):
        fmcpe.load(path)
    assert not (tmp_path / "boom").exists()


def test_a_truncated_file_is_refused(posteriors, tmp_path):
    path = posteriors("joint").save(tmp_path / "run.fmcpe")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="Expected a whole file"):
        fmcpe.load(path)


def test_observations_are_the_simulators_shape(posteriors):
    assert posteriors("joint").observation_shape == observe(PRIOR.sample((1,))).shape[1:]


def test_another_format_is_refused_by_name(posteriors, tmp_path):
    path = posteriors("joint").save(tmp_path / "run.fmcpe")
    edit(path, lambda says, tensors: says.update(format=4))
    with pytest.raises(ValueError, match=r"format 7, got .* of format 4.*Fit the posterior again"):
        fmcpe.load(path)


def test_a_class_that_is_not_ours_is_refused(posteriors, tmp_path):
    path = posteriors("joint").save(tmp_path / "run.fmcpe")
    edit(path, lambda says, tensors: says["posterior"].update({"class": "os.system"}))
    with pytest.raises(ValueError, match="posterior of this library"):
        fmcpe.load(path)


@pytest.mark.parametrize(
    "changes", [{"source": "normal"}, {"x_head": "embedding"}, {"hidden_x": (8, 12), "hidden_theta": (6,)}]
)
def test_every_shape_of_the_flows_comes_back_from_a_file(base, pairs, tmp_path, changes):
    posterior = FMCPE(base, simulate, recipe=replace(TINY, **changes)).fit(*pairs, seed=0, show_progress_bars=False)
    loaded = fmcpe.load(posterior.save(tmp_path / "run.fmcpe"))
    assert torch.equal(loaded.sample((5,), x=Y, seed=0), posterior.sample((5,), x=Y, seed=0))
    assert type(loaded.inner.u_x.u.head) is type(posterior.inner.u_x.u.head)
