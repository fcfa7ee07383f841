"""How long RoPE takes to answer 5000 observations with a pool of 5000 simulations. Prints a table.

    python benchmarks/rope.py [--observations 5000] [--pool 5000]

One draw per observation from the plan of the whole batch, on one thread, for some dimensions of the features and weights of
the entropy. The paper reports 55 to 450 s for the published implementation.
"""

import argparse
import resource
import time

import torch
from torch.distributions import MultivariateNormal

from fmcpe import as_base_posterior
from fmcpe.baselines import RoPE


def main():
    """Print one row per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=5000)
    parser.add_argument("--pool", type=int, default=5000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    print(f"{'features':>8} {'gamma':>7} {'rho':>6} {'seconds':>8} {'CPU s':>7} {'simulations per observation':>28}")
    for dim in (2, 10, 16):
        prior = MultivariateNormal(torch.zeros(dim), torch.eye(dim))
        theta = prior.sample((100 + options.observations,))
        y = 1.2 * theta + 0.3 + 0.5 * torch.randn_like(theta)  # a gain and an offset that the simulator does not know
        base = as_base_posterior(lambda x: 0.8 * x + 0.45 * torch.randn_like(x), prior)
        for gamma, rho in ((0.05, 1.0), (0.01, 0.2), (0.002, 0.02), (0.02, float("inf"))):
            method = RoPE(
                base, lambda t: t + 0.5 * torch.randn_like(t), gamma=gamma, rho=rho, num_simulations=options.pool
            )
            posterior = method.fit(theta[:100], y[:100], seed=0, show_progress_bars=False)
            started, cpu = time.perf_counter(), time.process_time()
            posterior.sample_batched((1,), x=y[100:], seed=0, show_progress_bars=False)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            weights = posterior.inner.plan(y[100:])
            entropy = -(weights * weights.clamp_min(1e-30).log()).sum(1)
            print(
                f"{dim:>8} {gamma:>7g} {rho:>6g} {seconds:>8.1f} {cpu:>7.1f} {float(entropy.exp().mean()):>28.1f}",
                flush=True,
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
