"""The noise: its bits for all 2^32 words and for random keys, its tail, and races that it decides narrowly.

A token `gap` nats behind another wins if -log(E) < G - gap for an exponential E of the leader: with probability
exp(-exp(-(G - gap))) given its own noise G, whose mean over the words must be 1 / (1 + e^gap). Nothing is sampled.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.gpu_proof import close_races
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import random_params
from drawlot import rng
from drawlot.rng import Stream

GAPS = np.linspace(0, 20.5, 206)
_NEGLIGIBLE = 16.0  # words beyond win with less than e^-16
_ROUNDING = 1.2e-6  # of the noise and its uniform together; tests/test_rng.py has the parts

Floats = NDArray[np.float64]
Transform = Callable[[int, int], Tensor]
"""float32 noise of `count` words from `first` on"""


def prove(setting: Setting, proof: Proof) -> None:
    """All words on the device; the noise of drawlot.rng there, and in NumPy for a share of them."""

    def of_rng(first: int, count: int) -> Tensor:
        return rng.gumbel(rng.uniform32(_words(setting, first, count)))

    num_words = 1 << (16 if setting.small else 32)
    transform = of_rng
    _host(setting, proof, of_rng)
    if setting.backend.name == "triton":
        from benchmarks.gpu_proof.noise_kernel import noise_of

        def transform(first: int, count: int) -> Tensor:
            return noise_of(first, count, setting.device)

        _bits(proof, transform, of_rng, num_words)
        _keyed_bits(setting, proof)
    else:
        proof.skip("bits of the noise", f"the {setting.backend.name} backend takes it from drawlot.rng")
    # The whole grid needs all words; its far end few.
    gaps = GAPS[GAPS > 12] if setting.small else GAPS
    _tail(proof, transform, gaps)
    _mutants(setting, proof)
    close_races.check(setting, proof)
    proof.summary = f"{num_words:,} words, win rates right at gaps {gaps[0]:.1f} to {gaps[-1]}, close races won rightly"


def _words(setting: Setting, first: int, count: int) -> Tensor:
    return torch.arange(first, first + count, device=setting.device)


def _chunks(num_words: int) -> list[tuple[int, int]]:
    count = min(num_words, 1 << 26)
    return [(first, min(count, num_words - first)) for first in range(0, num_words, count)]


def _bits(proof: Proof, transform: Transform, right: Transform, num_words: int) -> None:
    compared, differ = 0, 0
    for first, count in _chunks(num_words):
        # As numbers: 0 may have either sign, which no race can tell.
        differ += int((transform(first, count) != right(first, count)).sum())
        compared += count
    proof.check("noise of all words", differ == 0 and compared == num_words, words=compared, differ=differ)


def _keyed_bits(setting: Setting, proof: Proof) -> None:
    """Random seeds, positions, choices and rows of steps, ids up to 2^20, on the streams of both races."""
    from benchmarks.gpu_proof.noise_kernel import keyed_noise

    n = 1 << (4 if setting.small else 17)
    params = random_params(setting.generator(1), n, 128)
    first = 128 * torch.randint(1 << 13, (n,), generator=setting.generator(2), device=setting.device)
    key = [column.unsqueeze(1) for column in (params.seed, params.position)]
    rest = [column.unsqueeze(1) for column in (params.choice, params.row)]
    ids = first.unsqueeze(1) + torch.arange(128, device=setting.device)
    for wide in (False, True):
        differ = 0
        for stream in (Stream.TARGET_TILE, Stream.TARGET_TOKEN):
            right = rng.gumbel_noise(ids, *key, stream, *rest, wide=wide)
            differ += int((keyed_noise(first, params, int(stream), wide=wide) != right).sum())
        proof.check(
            f"bits of keyed {'float64' if wide else 'float32'} noise", differ == 0, points=256 * n, differ=differ
        )


def _host(setting: Setting, proof: Proof, on_device: Transform) -> None:
    """NumPy's noise of the lowest and highest words and of stretches between."""
    count = 1 << 16
    starts = [0, 2**32 - count, *range(count, 2**32 - 2 * count, 2**32 // (4 if setting.small else 128))]
    differ = 0
    for first in starts:
        host = rng.gumbel(rng.uniform32(np.arange(first, first + count, dtype=np.uint64)))
        differ += int((on_device(first, count).cpu().numpy().view(np.int32) != host.view(np.int32)).sum())
    proof.check("drawlot.rng on the device and in NumPy", differ == 0, words=count * len(starts), differ=differ)


def _tail(proof: Proof, transform: Transform, gaps: Floats) -> None:
    ratios = win_ratios(transform, gaps)
    error, near = np.abs(ratios - 1), gaps < 16
    proof.check("win rates, gaps below 16", error[near].max() < 2e-6, worst=float(error[near].max()))
    proof.check("win rates, gaps to 20.5", error.max() < 0.002, worst=float(error.max()), ratios=ratios.tolist())
    counts, expected, rises = counts_above(transform, gaps)
    # A word more or less, and those that rounding moves across: the share of words in a stretch of noise is below it.
    off = np.abs(counts - expected) / (1.0 + expected * _ROUNDING)
    proof.check("words above each gap", bool((off <= 1).all()), worst=float(off.max()), counts=counts.tolist())
    proof.check("noise falls as words rise", rises == 0, rises=rises)


def win_ratios(transform: Transform, gaps: Floats) -> Floats:
    """The win rate at each gap over the exact one."""
    wins = np.zeros(len(gaps))
    needed = np.minimum(2.0**32, 2.0**32 * _NEGLIGIBLE / np.exp(gaps)).astype(np.int64)
    for first, count in _chunks(int(needed.max())):
        noise = transform(first, count)
        for i in np.flatnonzero(needed > first):
            # The key is float32 in a race of float32, and so it is here.
            keys = noise[: int(needed[i]) - first] - np.float32(gaps[i])
            wins[i] += float((-(-keys.double()).exp()).exp().sum())
    return wins / 2.0**32 * (1 + np.exp(gaps))


def counts_above(transform: Transform, gaps: Floats) -> tuple[Floats, Floats, int]:
    """How many words have more noise than each gap, and how many should: 2^32 P(G > g) = 2^32 (1 - exp(-e^-g)).

    Also, at how many words the noise is more than at the word before: the counts rely on there being none.
    """
    gaps = gaps.astype(np.float32).astype(np.float64)
    expected = 2.0**32 * -np.expm1(-np.exp(-gaps))
    counts, rises = np.zeros(len(gaps)), 0
    for first, count in _chunks(min(2**32, int(1.1 * expected.max()) + 100)):
        noise = transform(first, count)
        line = torch.from_numpy(-gaps).float().to(noise.device)
        counts += torch.searchsorted(noise.neg(), line).cpu().numpy()
        rises += int((noise[1:] > noise[:-1]).sum())
    return counts, expected, rises


def _mutants(setting: Setting, proof: Proof) -> None:
    """Coarser noise has another tail."""

    def of_24_bits(first: int, count: int) -> Tensor:
        return rng.gumbel(((_words(setting, first, count) >> 8).float() + 0.5) * 2.0**-24)

    def of_31_bits(first: int, count: int) -> Tensor:
        """As tl.rand makes its uniforms, 0 moved to the smallest float32."""
        return rng.gumbel(((_words(setting, first, count) >> 1).float() * 2.0**-31).clamp(min=2.0**-126))

    for name, mutant in {"noise of 24 bits": of_24_bits, "noise of 31 bits": of_31_bits}.items():
        worst = float(np.abs(win_ratios(mutant, GAPS[GAPS > 16]) - 1).max())
        proof.check(f"seen: {name}", worst > 0.1, worst=worst)
