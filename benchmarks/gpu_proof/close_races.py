"""Races that are barely no near-ties: the right side must win every one of them.

Two live tokens, 1 apart, at a temperature T so that 1 / T is the difference of their noises but for a hair: a tenth
more than a near-tie where noise and race are float32, a part in 2^36 where they are float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_proof.oracle import NEAR_TIE
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import Batch
from drawlot import rng
from drawlot.kernels.inputs import TILE, Edits, RowParams
from drawlot.rng import Stream


class Race(NamedTuple):
    """Between id 0 and another one; the other ids are dead, or dropped by top-k."""

    name: str
    stream: Stream
    other: int
    top_k: int


_RACES = (
    Race("tokens", Stream.TARGET_TOKEN, 1, 0),
    Race("tokens, top-k", Stream.TARGET_TOKEN, 3, 2),
    Race("tiles", Stream.TARGET_TILE, TILE, 0),
    Race("tiles, top-k", Stream.TARGET_TILE, TILE, 2),
)


def check(setting: Setting, proof: Proof) -> None:
    """Each race with each width of noise; and once with noise that is a little off."""
    n = 1 << (10 if setting.small else 18)
    for wide in (False, True):
        for race in _RACES:
            name = f"close races: {race.name}, {'float64' if wide else 'float32'} noise"
            if wide and race.name == "tiles" and setting.backend.name == "torch":
                proof.skip(name, "the torch backend compares the maxima of tiles in float32")
                continue
            noise = _keyed_noise(setting, race, n, wide)
            raced, wrong = _wrong_winners(setting, race, *noise, wide)
            proof.check(name, wrong == 0, rows=raced, wrong=wrong)
    params, noise = _keyed_noise(setting, _RACES[0], n, False)
    raced, wrong = _wrong_winners(setting, _RACES[0], params, noise * (1 + 2.0**-15), False)
    proof.check("seen: noise off by a part in 2^15", wrong > raced / 10, rows=raced, wrong=wrong)


def _keyed_noise(setting: Setting, race: Race, n: int, wide: bool) -> tuple[RowParams, Tensor]:
    """Parameters of n rows with random seeds and positions, and the noise [n, 2] of both sides."""
    generator, device = setting.generator(race.other + 1000 * wide), setting.device
    seed = torch.empty(n, dtype=torch.int64, device=device).random_(-(2**63), None, generator=generator)
    position = torch.randint(2**40, (n,), generator=generator, device=device)
    zeros, ones = torch.zeros_like(seed), torch.ones(n, dtype=torch.float64, device=device)
    ids = torch.tensor([0, race.other // (TILE if race.stream == Stream.TARGET_TILE else 1)], device=device)
    key = (column.unsqueeze(1) for column in (zeros, zeros))
    noise = rng.gumbel_noise(ids, seed.unsqueeze(1), position.unsqueeze(1), race.stream, *key, wide=wide)
    return RowParams(ones, zeros + race.top_k, ones, ones * 0, seed, position, zeros, zeros), noise


def _wrong_winners(setting: Setting, race: Race, params: RowParams, noise: Tensor, wide: bool) -> tuple[int, int]:
    """How many rows were raced, and in how many the wrong one won."""
    n, device = len(noise), setting.device
    noise = noise.double()
    gap = (noise[:, 1] - noise[:, 0]).abs()
    # The side with less noise starts ahead by the gap, and by a hair more or less; its key is its noise.
    ahead = (noise[:, 1] < noise[:, 0]).long()
    hair = gap * 2.0**-36 if wide else 1.1 * NEAR_TIE * noise.amin(1).abs().clamp(min=1)
    more = torch.randint(2, (n,), generator=setting.generator(0), device=device)
    temperature = 1 / (gap + (2 * more - 1) * hair)
    logits = torch.full((n, race.other + 1), -5.0 if race.top_k else -torch.inf, device=device)
    logits[:, 0], logits[:, race.other] = -ahead.float(), ahead.float() - 1
    drawn = setting.draw(Batch(logits, params._replace(temperature=temperature), Edits(), None, wide))
    winner = torch.where(more == 1, ahead, 1 - ahead) * race.other
    raced = gap > 1e-3
    return int(raced.sum()), int(((drawn.token_ids != winner) & raced).sum())
