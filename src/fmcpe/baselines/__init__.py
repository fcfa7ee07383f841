"""Baselines: each has ``fit(theta, y)``, which returns a `CorrectedPosterior`.

| | simulator | pairs | method |
| --- | --- | --- | --- |
| `NPE` | through the base posterior | no | evaluates the base posterior at y |
| `DPE` | no | yes | trains on the pairs alone |
| `MFNPE` | through the base posterior | yes | fine-tunes the base posterior on the pairs |
| `RoPE` | yes | yes | mixes the base posterior over simulations by optimal transport; transductive |
| `FRISBI` | yes | yes | the same with fixed potentials: one observation at a time |
| `NNPE` | yes | no | trains on noisy simulations |
| `NPERS` | yes | y alone | trains on simulations, with summaries distributed like those of real observations |
| `RNPE` | yes | no | denoises y under spike-and-slab errors, then asks the base posterior |
| `RSNL` | yes | no | Gaussian likelihood with an adjustment of each summary, by MCMC |
| `JNPE` | yes | yes | trains on simulations and pairs together |
"""

from fmcpe.baselines.dpe import DPE
from fmcpe.baselines.frisbi import FRISBI
from fmcpe.baselines.jnpe import JNPE
from fmcpe.baselines.mfnpe import MFNPE
from fmcpe.baselines.nnpe import NNPE, SpikeAndSlab
from fmcpe.baselines.npe import NPE
from fmcpe.baselines.npers import NPERS
from fmcpe.baselines.rnpe import RNPE
from fmcpe.baselines.rope import RoPE
from fmcpe.baselines.rsnl import RSNL

__all__ = ["DPE", "FRISBI", "JNPE", "MFNPE", "NNPE", "NPE", "NPERS", "RNPE", "RSNL", "RoPE", "SpikeAndSlab"]
