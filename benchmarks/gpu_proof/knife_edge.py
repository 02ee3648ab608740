"""Races that the last bit of the noise decides: the product's kernels compute that noise, and race it in float64.

Two live tokens, 1 apart, at a temperature T so that 1 / T is the difference of their noises but for a part in 2^36.
One unit in the last place of either noise would turn about half of these races. Closer than the near-tie that excuses
other differences; no excuse is needed here, since both tokens' masses are exact.
"""

import torch

from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import Batch
from drawlot import rng
from drawlot.kernels.inputs import TILE, Edits, RowParams
from drawlot.rng import Stream

_EDGE = 2.0**-36


def check(setting: Setting, proof: Proof) -> None:
    """Races of tokens in a tile, and of tiles of one live token each; all others are dead, or dropped by top-k."""
    n = 1 << (10 if setting.small else 18)
    for wide in (False, True):
        noise = "float64 noise" if wide else "float32 noise"
        for name, stream, other, top_k in (
            ("tokens", Stream.TARGET_TOKEN, 1, 0),
            ("tokens, top-k", Stream.TARGET_TOKEN, 3, 2),
            ("tiles", Stream.TARGET_TILE, TILE, 0),
            ("tiles, top-k", Stream.TARGET_TILE, TILE, 2),
        ):
            if name == "tiles" and setting.backend.name == "torch":
                proof.skip(f"knife edge: {name}, {noise}", "the torch backend keeps masses of whole rows in float32")
                continue
            rows, wrong = _races(setting, n, stream, other, top_k, wide, off_by_one=False)
            proof.check(f"knife edge: {name}, {noise}", wrong == 0, rows=rows, wrong=wrong)
    rows, wrong = _races(setting, n, Stream.TARGET_TOKEN, 1, 0, False, off_by_one=True)
    proof.check("seen: noise off by its last bit", wrong > rows / 10, rows=rows, wrong=wrong)


def _races(
    setting: Setting, n: int, stream: Stream, other: int, top_k: int, wide: bool, off_by_one: bool
) -> tuple[int, int]:
    """Rows raced between id 0 and id `other`, and how many the wrong one won; off_by_one: the last bits expected."""
    generator = setting.generator(int(stream) + 10 * wide)
    seed = torch.empty(n, dtype=torch.int64, device=setting.device).random_(-(2**63), None, generator=generator)
    zeros = torch.zeros_like(seed)
    position = torch.randint(2**40, (n,), generator=generator, device=setting.device)
    ids = torch.tensor([0, other if stream == Stream.TARGET_TOKEN else other // TILE], device=setting.device)
    key = [column.unsqueeze(1) for column in (seed, position)]
    noise = rng.gumbel_noise(ids, *key, stream, zeros.unsqueeze(1), zeros.unsqueeze(1), wide=wide)
    if off_by_one:
        noise = torch.nextafter(noise, torch.full_like(noise, torch.inf))
        noise[:, 0] = torch.nextafter(noise[:, 0], torch.full_like(noise[:, 0], -torch.inf))
    noise = noise.double()
    # The token with less noise is the likelier one by nearly the difference.
    gap = noise[:, 1] - noise[:, 0]
    ahead = (gap < 0).long()
    side = 1 - 2 * torch.randint(2, (n,), generator=generator, device=setting.device).double()
    temperature = 1 / (gap.abs() * (1 + side * _EDGE))
    logits = torch.full((n, other + 1), -5.0 if top_k else -torch.inf, device=setting.device)
    logits[:, 0], logits[:, other] = -ahead.float(), ahead.float() - 1
    off, on = torch.zeros_like(temperature), torch.ones_like(temperature)
    params = RowParams(temperature, zeros + top_k, on, off, seed, position, zeros, zeros)
    drawn = setting.draw(Batch(logits, params, Edits(), None, wide))
    winner = torch.where(side > 0, ahead, 1 - ahead) * other
    sure = gap.abs() > 1e-3
    return int(sure.sum()), int(((drawn.token_ids != winner) & sure).sum())
