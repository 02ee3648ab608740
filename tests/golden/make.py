"""Writes noise.json and tokens.json: what must never change unless the noise contract does.

Run `python tests/golden/make.py` after a deliberate change and say so in the changelog. tokens.json is provisional
until the GPU backend has landed, since measurements there may still change the field of noise.
"""

import json
import random
from pathlib import Path

import numpy as np
import torch

from drawlot import SamplingParams, rng, sample

HERE = Path(__file__).parent
POINTS = 240

PARAMS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"temperature": 0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40, "temperature": 0.8},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 2.0},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
    {"logit_bias": {3: 6.0, 9: -100.0}, "top_p": 0.99},
    {"allowed_token_ids": [1, 2, 3, 5, 8, 13]},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": -0.25},
    {"min_tokens": 9, "stop_token_ids": [0, 7, 11], "temperature": 0.3},
]
VOCABS = (16, 300, 1000, 5003)
PROMPT, OUTPUT = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5]


def logits(case, vocab_size):
    """[1, V] in [-8, 8), multiples of 2^-9: exact in float32 and the same everywhere."""
    mixed = (torch.arange(vocab_size) * 2654435761 + case * 40503001) >> 7
    return ((mixed & 0x1FFF).float() / 512 - 8).unsqueeze(0)


def draw(row, backend):
    return sample(
        logits(row["case"], row["vocab_size"]),
        SamplingParams(**with_int_keys(row["params"])),
        positions=torch.tensor([row["position"]]),
        prompt_token_ids=[PROMPT],
        output_token_ids=[OUTPUT],
        choice_index=row["choice"],
        use_fp64_gumbel=row["use_fp64_gumbel"],
        backend=backend,
    ).token_ids.item()


def with_int_keys(params):
    """JSON knows only strings as keys."""
    bias = params.get("logit_bias")
    return params if bias is None else {**params, "logit_bias": {int(key): value for key, value in bias.items()}}


def noise(point, convert):
    """Float32 and float64 noise of (seed, position, stream, id, choice, row); `convert` makes arrays of integers."""
    seed, position, stream, token, choice, row = point
    at = convert(token), convert(seed), convert(position), stream, convert(choice), convert(row)
    narrow, wide = (np.asarray(rng.gumbel_noise(*at, wide=wide)) for wide in (False, True))
    return f"{int(narrow.view(np.uint32)[0]):08x}", float(wide[0]).hex()


def as_torch(number):
    return torch.tensor([number])


def _points():
    pick = random.Random(20).choice
    bits = random.Random(21).getrandbits
    for i in range(POINTS):
        seed = pick((0, 1, -1, 2**63 - 1, -(2**63), bits(64) - 2**63, bits(31)))
        position = pick((0, 1, 2**32 - 1, 2**32, 2**48 - 1, bits(17), bits(48)))
        yield seed, position, i % len(rng.Stream), pick((i, bits(7), bits(18))), pick((0, 1, 127)), pick((0, 3, 65535))


def _rows():
    bits = random.Random(22).getrandbits
    for case in range(len(PARAMS) * len(VOCABS)):
        params = {"seed": bits(64) - 2**63, "max_tokens": 64, **PARAMS[case % len(PARAMS)]}
        yield {
            "case": case,
            "vocab_size": VOCABS[case // len(PARAMS)],
            "params": params,
            "position": bits(20),
            "choice": case % 3,
            "use_fp64_gumbel": case % 4 == 3,
        }


def _write(name, entries):
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / name).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    _write("noise.json", [[*point, *noise(point, as_torch)] for point in _points()])
    _write("tokens.json", [{**row, "token": draw(row, "reference")} for row in _rows()])
