"""Memory and threads under load; prints a line for each part.

    python benchmarks/load.py                        all parts
    python benchmarks/load.py draws observations wide fits threads torch_threads image_threads

Each part runs in a process of its own, so that its peak memory is its own. With --check, one that exceeds its limit of memory,
or has a wrong draw, is an error: `make test-slow` runs them so, `observations` with a fifth of them.
"""

import math
import multiprocessing
import resource
import sys
import threading
import time
import warnings

import torch
from sbi.utils import BoxUniform

from fmcpe import FMCPE, FMCPEWarning, Stack, train_npe
from fmcpe.base_posteriors.adapters import as_base_posterior
from fmcpe.candidates import Prior, ResidualShift, SyntheticLikelihood, Uncorrected

Found = tuple[str, float, float]
"""In words; a number; and its limit."""
LIGHT = Stack([Prior(), Uncorrected(), ResidualShift(), SyntheticLikelihood()])


def peak() -> float:
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident() -> float:
    """Resident memory of this process now, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def problem(
    p: int = 2, d: int = 6, pairs: int = 50, recipe: Stack | str = LIGHT
) -> tuple[FMCPE, torch.Tensor, torch.Tensor]:
    """A linear problem with a gain and an offset, and its pairs."""
    torch.manual_seed(0)
    matrix, prior = torch.randn(p, d) / p**0.5, BoxUniform(-torch.ones(p), torch.ones(p))
    inverse = torch.linalg.pinv(matrix)

    def simulate(theta: torch.Tensor) -> torch.Tensor:
        x = theta @ matrix
        return x + 0.2 * torch.randn_like(x)

    def draw(x: torch.Tensor) -> torch.Tensor:
        mean = x @ inverse
        return mean + 0.3 * torch.randn_like(mean)

    def log_prob(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(x @ inverse, 0.3).log_prob(theta).sum(1)

    theta = prior.sample((pairs,))
    return FMCPE(as_base_posterior(draw, prior, log_prob), simulate, recipe=recipe), theta, 1.2 * simulate(theta) + 0.2


def fitted(**options):
    method, theta, y = problem(**options)
    return method.fit(theta, y, seed=0, show_progress_bars=False), theta, y


def draws(number: int = 1_000_000) -> Found:
    posterior, _, y = fitted()
    before = peak()
    found = posterior.sample((number,), x=y[0], seed=0, show_progress_bars=False)
    more = peak() - before
    return f"{len(found)} draws for one observation: {more:.0f} MiB more", more, 300


def observations(number: int = 100_000) -> Found:
    posterior, _, y = fitted()
    before, many = peak(), y[torch.arange(number) % len(y)]
    found = posterior.sample_batched((10,), x=many, seed=0, show_progress_bars=False)
    sampled = peak() - before
    posterior.check(many)
    more = peak() - before
    text = f"10 draws for each of {found.shape[1]} observations: {sampled:.0f} MiB more, with check {more:.0f}"
    return text, more, 1000


def wide(pairs: int = 200) -> Found:
    method, theta, y = problem(p=12, d=60, pairs=pairs, recipe="default")
    # a network, so that every candidate of the default recipe is fitted
    base = train_npe(method.simulator, method.base.prior, 5000, seed=0, max_num_epochs=4, show_progress_bars=False)
    before = peak()
    FMCPE(base, method.simulator).fit(theta, y, seed=0, show_progress_bars=False)
    text = f"default fit of 12 parameters, 60 numbers, {pairs} pairs: {peak() - before:.0f} MiB more, peak {peak():.0f}"
    return text, peak(), 2048


def fits(number: int = 50) -> Found:
    method, theta, y = problem()
    sizes = []
    for seed in range(number):
        posterior = method.fit(theta, y, seed=seed, show_progress_bars=False)
        posterior.sample((100,), x=y[0], seed=0)
        sizes.append(resident())
    text = f"{number} fits: {sizes[4]:.0f} MiB after 5, {sizes[number // 2]:.0f} halfway, {sizes[-1]:.0f} at the end"
    return text, sizes[-1] - sizes[4], 30


def threads(number: int = 8, rounds: int = 5) -> Found:
    posterior, theta, y = fitted()
    alone = [
        (posterior.sample((200,), x=y[k], seed=k, show_progress_bars=False), posterior.log_prob(theta, x=y[k]))
        for k in range(number)
    ]
    wrong = []

    def work(k: int) -> None:
        for _ in range(rounds):
            found = posterior.sample((200,), x=y[k], seed=k, show_progress_bars=False)
            density = posterior.log_prob(theta, x=y[k])
            if not torch.equal(found, alone[k][0]):
                wrong.append("draws")
            if not torch.allclose(density, alone[k][1], atol=1e-4):
                wrong.append("density")

    workers = [threading.Thread(target=work, args=(k,)) for k in range(number)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    bad = {kind: wrong.count(kind) for kind in ("draws", "density")}
    text = f"{number} threads: {bad['draws']} wrong draws, {bad['density']} wrong densities of {number * rounds}"
    return text, len(wrong), 0


def torch_threads(rounds: int = 8) -> Found:
    """Wall time of a training and a fit by torch's number of threads, the smallest of some rounds by turns."""
    method, theta, y = problem()
    seconds: dict[int, float] = {1: math.inf, 2: math.inf}
    for _ in range(rounds):
        for number in (1, 2):
            torch.set_num_threads(number)
            started = time.perf_counter()
            base = train_npe(
                method.simulator, method.base.prior, 4000, seed=0, max_num_epochs=4, show_progress_bars=False
            )
            FMCPE(base, method.simulator, recipe=LIGHT).fit(theta, y, seed=0, show_progress_bars=False)
            seconds[number] = min(seconds[number], time.perf_counter() - started)
    ratio = seconds[2] / seconds[1]
    return (
        f"training and fit: {seconds[1]:.2f} s with one thread of torch, {ratio:.2f} times that with two",
        ratio,
        math.inf,
    )


def image_threads(rounds: int = 3) -> Found:
    """Wall times of a training on images of 64 x 64 x 3 by torch's number of threads, by turns."""
    prior = BoxUniform(torch.zeros(3), torch.ones(3))
    theta = prior.sample((600,))
    x = theta[:, :, None, None] + 0.2 * torch.randn(600, 3, 64, 64)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for number in (1, 2):
            torch.set_num_threads(number)
            started = time.perf_counter()
            train_npe(
                None,
                prior,
                simulations=(theta, x),
                embedding_net="auto",
                max_num_epochs=2,
                seed=0,
                show_progress_bars=False,
            )
            seconds[number].append(time.perf_counter() - started)
    one, two = (", ".join(f"{each:.1f}" for each in sorted(seconds[number])) for number in (1, 2))
    ratio = min(seconds[2]) / min(seconds[1])
    return f"training on images: {one} s with one thread of torch, {two} with two", ratio, math.inf


PARTS = {part.__name__: part for part in (draws, observations, wide, fits, threads, torch_threads, image_threads)}


def measure(name: str, check: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FMCPEWarning)
    started = time.process_time()
    found, value, limit = PARTS[name](20_000) if check and name == "observations" else PARTS[name]()
    print(f"{name}: {found}; {time.process_time() - started:.0f} s of CPU", flush=True)
    if check and value > limit:
        sys.exit(f"{name}: {value:.0f} is more than {limit:.0f}")


if __name__ == "__main__":
    names, failed = [name for name in sys.argv[1:] if name != "--check"], False
    for part in names or list(PARTS):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(part, "--check" in sys.argv))
        process.start()
        process.join()
        failed = failed or process.exitcode != 0
    sys.exit(int(failed))
