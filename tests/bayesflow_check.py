"""Run by test_bayesflow in a process of its own: ``import bayesflow`` switches gradients off and sets up logging for good."""

import json
import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"
warnings.simplefilter("ignore")

import bayesflow as bf  # noqa: E402
import keras  # noqa: E402
import torch  # noqa: E402
from conftest import PRIOR, observe, simulate  # noqa: E402

import fmcpe  # noqa: E402
from fmcpe import FMCPE, Stack, candidates  # noqa: E402
from fmcpe.base_posteriors.bayesflow import BayesFlowBase, from_bayesflow  # noqa: E402

FOUND = {"gradients_after_import": torch.is_grad_enabled(), "backend": keras.backend.backend()}
X = torch.tensor([[0.5, 2.0, 1.0], [-1.0, 0.5, -0.8]])


def workflow() -> bf.BasicWorkflow:
    """As BayesFlow's own users train one: named parameters, one array of data."""
    keras.utils.set_random_seed(0)
    torch.manual_seed(0)
    theta = PRIOR.sample((4000,))
    data = {"gain": theta[:, :1].numpy(), "mass": theta[:, 1:].numpy(), "x": simulate(theta).numpy()}
    made = bf.BasicWorkflow(
        inference_network=bf.networks.CouplingFlow(depth=2),
        inference_variables=["gain", "mass"],
        inference_conditions=["x"],
        initial_learning_rate=5e-3,  # 200 steps are enough then
    )
    made.fit_offline(data, epochs=10, batch_size=200, verbose=0)
    return made


def main() -> None:
    """Print what was found, as JSON."""
    trained = workflow()
    base = fmcpe.as_base_posterior(trained, PRIOR)
    FOUND["kind"], FOUND["names"], FOUND["data"] = type(base).__name__, base.names, base.data
    torch.manual_seed(0)
    theta = base.sample(X, 300)
    FOUND["inside"] = bool(PRIOR.support.check(theta).all())
    FOUND["means"] = theta.mean(1).tolist()
    torch.manual_seed(0)
    FOUND["repeats"] = bool(torch.equal(theta, base.sample(X, 300)))
    u = (torch.arange(40) + 0.5) / 40
    a, b = torch.meshgrid(-2 + 4 * u, u, indexing="ij")
    grid = torch.stack([a.flatten(), b.flatten()], dim=1)
    FOUND["masses"] = (base.log_prob(grid.expand(2, -1, -1), X).exp().sum(1) * 4 / 1600).tolist()

    torch.manual_seed(1)
    pairs = PRIOR.sample((40,))
    y = observe(pairs)
    recipe = Stack(
        [candidates.Uncorrected(), candidates.ResidualShift(), candidates.JointFlow(steps=60)], folds=2, repeats=1
    )
    posterior = FMCPE(trained, simulate, PRIOR, recipe=recipe).fit(pairs, y, seed=0, show_progress_bars=False)
    FOUND["gradients_after_fit"] = torch.is_grad_enabled()
    FOUND["parameters"] = posterior.names
    test = PRIOR.sample((60,))
    found = fmcpe.diagnostics.compare(trained.approximator, posterior, test, observe(test), num_samples=100)
    FOUND["energy"] = found.energy
    FOUND["log_prob"] = posterior.log_prob(pairs[:3], x=y[0]).tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = posterior.save("run.fmcpe")
    FOUND["save_says"] = " ".join(str(each.message) for each in caught)
    loaded = fmcpe.load(path, posterior=from_bayesflow(trained, PRIOR, parameters=["gain", "mass"], data="x"))
    FOUND["loads"] = bool(torch.equal(loaded.sample((5,), x=y[0], seed=0), posterior.sample((5,), x=y[0], seed=0)))
    npe = fmcpe.train_npe(simulate, PRIOR, 500, seed=0, max_num_epochs=2, show_progress_bars=False)
    FOUND["train_npe"] = npe.history["training_loss"][-1] < npe.history["training_loss"][0]
    try:
        fmcpe.as_base_posterior(trained)
    except ValueError as error:
        FOUND["without_prior"] = str(error)
    try:
        from_bayesflow(trained, torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)))
    except ValueError as error:
        FOUND["wrong_prior"] = str(error)
    wide = BayesFlowBase(trained.approximator, PRIOR, {"gain": 1, "mass": 1}, "x")
    FOUND["explicit"] = list(wide.sample(X, 2).shape)
    print("FOUND" + json.dumps(FOUND), file=sys.stdout)


main()
