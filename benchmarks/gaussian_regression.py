"""How close a regression with flat beliefs comes to the exact posterior on the Gaussian task. Prints a table.

    python benchmarks/gaussian_regression.py

Somebody who knows that real data are linear in θ with normal noise, but neither coefficients nor covariance, and believes
nothing of them beforehand, regresses y on θ and uses Bayes' rule with the known prior. The table has the C2ST of that answer
to the exact posterior: the accuracy of the best classifier there is, which knows both densities (a trained one finds less).
"Covariance known": the mean from the pairs, the covariance exact. Of E[y|θ] simulations say only that it is linear: C in
y = C x + d is any matrix. Means over calibration sets and 200 test observations, with the standard error over sets.
"""

import argparse

import torch

from fmcpe import tasks

OBSERVATIONS, DRAWS = 200, 1000


def regression(theta, y, task, observed):
    """Posterior means and covariances for rows of y, of a regression of y on θ: (B, p) and (B, p, p)."""
    number, dim = y.shape
    features = torch.cat([theta, torch.ones(number, 1).to(theta)], dim=1)
    gram = torch.linalg.inv(features.T @ features)
    coefficients = gram @ features.T @ y
    residual = y - features @ coefficients
    freedom = number - features.shape[1] - dim + 1
    precision = torch.linalg.inv(residual.T @ residual / freedom)
    slope, prior_precision = coefficients[:-1].T, torch.linalg.inv(task.prior.covariance_matrix.double())
    weighted = slope.T @ precision
    expected_at_prior = task.prior.mean.double() @ slope.T + coefficients[-1]
    factor, mean = torch.ones(len(observed)).to(y), None
    for _ in range(5):  # Student's t as the normal distribution that is as steep at its peak
        covariance = torch.linalg.inv(prior_precision + weighted @ slope / factor[:, None, None])
        towards = (observed - expected_at_prior) @ weighted.T / factor[:, None]
        mean = task.prior.mean.double() + (covariance @ towards[:, :, None])[:, :, 0]
        asked = torch.cat([mean, torch.ones(len(mean), 1).to(mean)], dim=1)
        leverage = 1 + ((asked @ gram) * asked).sum(1)
        off = observed - asked @ coefficients
        distance = ((off @ precision) * off).sum(1) / leverage
        factor = leverage * (freedom + distance) / (freedom + dim)
    return mean, covariance


def best_accuracy(means, covariances):
    """Of a classifier that knows both normal distributions of each row."""
    noise, roots = torch.randn(DRAWS, 1, means[0].shape[1]).double(), [torch.linalg.cholesky(c) for c in covariances]
    right = []
    for side in range(2):
        draws = means[side] + (roots[side] @ noise[..., None])[..., 0]
        log_probs = []
        for mean, root in zip(means, roots, strict=True):
            standard = torch.linalg.solve_triangular(root, (draws - mean)[..., None], upper=False)[..., 0]
            log_probs.append(-0.5 * standard.square().sum(-1) - root.diagonal(dim1=1, dim2=2).log().sum(-1))
        right.append((log_probs[side] > log_probs[1 - side]).double().mean())
    return float(sum(right) / 2)


def main():
    """Print one row per number of pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="50,200,1000")
    parser.add_argument("--sets", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = tasks.get("gaussian")
    observed = task.test_set(OBSERVATIONS, 0)[1]
    exact = [task.reference_posterior(row) for row in observed]
    mean, covariance = torch.stack([e.mean for e in exact]), torch.stack([e.cov for e in exact])
    print(f"{'pairs':>6} {'C2ST':>15} {'covariance known':>17} {'sets 0 to 2':>12}")
    for size in map(int, options.sizes.split(",")):
        rows = []
        for seed in range(options.sets):
            theta, y = (part.double() for part in task.calibration_set(size, seed))
            found_mean, found_covariance = regression(theta, y, task, observed.double())
            rows.append(
                [
                    best_accuracy((found_mean, mean), (found_covariance, covariance)),
                    best_accuracy((found_mean, mean), (covariance, covariance)),
                ]
            )
        found = torch.tensor(rows)
        (a, b), (error, _) = found.mean(0).tolist(), (found.std(0) / len(found) ** 0.5).tolist()
        print(f"{size:>6} {f'{a:.3f} ± {error:.3f}':>15} {b:>17.3f} {float(found[:3, 0].mean()):>12.3f}", flush=True)


if __name__ == "__main__":
    main()
