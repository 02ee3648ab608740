"""Tokens by graph are those of plain torch."""

import random
from pathlib import Path
from typing import Any

from benchmarks.engine_gpu.work import Work, make_engine


def equality(folder: Path, work: Work) -> dict[str, Any]:
    """Seeded tokens of a small float32 model by graph, against the same engine in plain torch."""
    from drawlot import SamplingParams

    rng = random.Random(1)
    small = Work(
        [[rng.randrange(512) for _ in range(rng.randrange(1, 40))] for _ in range(12)], 24, "float32", work.device, 1
    )
    # Twelve requests share fewer rows, end after different numbers of tokens and at some stop tokens.
    tokens: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for enforce_eager, found in tokens.items():
        engine = make_engine(folder, small, enforce_eager=enforce_eager)
        for index, prompt in enumerate(small.prompts):
            params = SamplingParams(
                seed=index, top_p=0.95, max_tokens=5 + index, stop_token_ids=range(20), detokenize=False
            )
            engine.add_request(str(index), prompt, params)
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.outputs[0].token_ids for output in engine.step() if output.finished}
    differing = [(found, tokens[False][key]) for key, found in tokens[True].items() if found != tokens[False][key]]
    if differing:
        raise RuntimeError(f"tokens in plain torch and by graph differ: {differing}")
    return {"requests": len(small.prompts), "tokens": sum(map(len, tokens[True].values())), "equal": True}
