"""On a real cluster of worker processes, one of which is killed in the middle."""

import os
import signal
from collections import Counter
from functools import partial

import bench_helpers as helpers
import pytest
import torch

import fmcpe
from fmcpe._cluster import connect
from fmcpe.bench.run import run
from fmcpe.bench.store import Store

distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of one thread each, restarted by their nannies if they die."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster


def test_a_worker_is_killed_in_the_middle_and_every_unit_is_done_once(cluster, tmp_path):
    units, killed = helpers.units(16), tmp_path / "killed"

    def perform(unit, base=None):
        # the worker that does this unit first takes itself out, as the kernel would do it
        if unit.kind == "fit" and unit.set == 2 and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return helpers.perform(unit, base)

    outcome = run(
        tmp_path / "run", {("main", "smoke"): units}, dask=cluster.scheduler_address, perform=perform, command="test"
    )
    assert killed.exists(), "no worker was killed"
    assert (outcome.done, outcome.failed, outcome.done_now) == (len(units), 0, len(units))
    with Store(tmp_path / "run", read_only=True) as store:
        events = Counter(store.events())
    assert {events[unit.id, "done"] for unit in units} == {1}
    assert {events[unit.id, "claimed"] for unit in units} == {1}


def test_workers_with_several_threads_are_refused(tmp_path):
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        pytest.raises(ValueError, match="--nthreads 1"),
    ):
        run(tmp_path, {("main", "smoke"): helpers.units()}, dask=cluster.scheduler_address, perform=helpers.perform)


def test_no_scheduler_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("fmcpe.bench.pools.connect", partial(connect, timeout="1s"))
    with pytest.raises(OSError, match="dask scheduler"):
        run(tmp_path, {("main", "smoke"): helpers.units()}, dask="tcp://127.0.0.1:1", perform=helpers.perform)


def noisy(theta):
    """A simulator that says in which process it ran."""
    return torch.stack([theta[:, 0] + torch.randn(len(theta)), torch.full((len(theta),), float(os.getpid()))], dim=1)


def test_simulations_are_the_same_on_a_cluster_and_here(cluster):
    theta = torch.randn(50, 2)
    before = torch.get_rng_state()
    here = fmcpe.simulate(noisy, theta, batch_size=7, seed=3, show_progress_bars=False)
    there = fmcpe.simulate(noisy, theta, batch_size=7, seed=3, dask=cluster.scheduler_address, show_progress_bars=False)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(here[:, 0], there[:, 0])
    assert os.getpid() not in there[:, 1] and set(here[:, 1].tolist()) == {float(os.getpid())}
    other = fmcpe.simulate(noisy, theta, batch_size=7, show_progress_bars=False)
    assert not torch.equal(here[:, 0], other[:, 0])
    assert len(set((other[:, 0] - theta[:, 0]).tolist())) == 50, "two batches had the same noise"


def test_a_base_posterior_is_trained_on_simulations_from_a_cluster(cluster):
    prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
    with distributed.Client(cluster) as client:
        made = [
            fmcpe.train_npe(
                lambda theta: theta + torch.randn_like(theta), prior, 400, seed=0, dask=address, max_num_epochs=2,
                show_progress_bars=False,
            )
            for address in (cluster.scheduler_address, client)
        ]  # fmt: skip
        assert client.status == "running", "a client that was given is not ours to close"
    assert made[0].history == made[1].history


def test_simulate_says_what_it_expects():
    with pytest.raises(ValueError, match=r"Expected theta of shape \(N, p\), got \(3,\)\. Pass one row"):
        fmcpe.simulate(noisy, torch.zeros(3))
    with pytest.raises(ValueError, match="batch_size"):
        fmcpe.simulate(noisy, torch.zeros(3, 2), batch_size=0)
