"""CUDA graphs: a captured draw, given other inputs in its buffers, replays what the eager call draws from them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.gpu_proof.bits import differing, drawn_rows
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, Form, random_batch
from drawlot import LogitsRows, Sampler, SamplerOutput, SamplingParams

FORMS = {
    "plain": PLAIN,
    "bitmask, raw logprobs": PLAIN._replace(edits=("bitmask",), mode="raw_logprobs"),
    "bfloat16, processed logprobs": Form(torch.bfloat16, "contiguous", (), "processed_logprobs", False),
    "float64 noise": PLAIN._replace(wide=True),
}
REQUESTS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.0},
    {"top_k": 50, "top_p": 0.9, "logprobs": 0},
    {"top_p": 0.95, "temperature": 1.5},
    {"min_p": 0.05, "logprobs": 5},
    {"logprob_token_ids": [3, 1, 4]},
)
EDITED: tuple[dict[str, object], ...] = (
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"logit_bias": {5: 3.0, 7: -100.0}, "top_k": 20},
    # Few tokens, so that what was emitted bears on every step.
    {"allowed_token_ids": [1, 2, 3, 5, 8, 13], "frequency_penalty": 2.0, "presence_penalty": 2.0},
    {"min_tokens": 20, "stop_token_ids": [2, 3], "max_tokens": 64, "top_p": 0.9},
)
_STEPS = 8


STEPS_OF = {"steps of a sampler": REQUESTS, "steps of a sampler with edits": REQUESTS + EDITED}
NAMES = (*FORMS, *STEPS_OF)
SIZE = 128_256, 512
"""Vocabulary, and rows of a batch"""


def prove(setting: Setting, proof: Proof) -> None:
    """All forms, each by itself."""
    proof.apart(setting, check, [(name, *((300, 64) if setting.small else SIZE)) for name in NAMES])
    proof.summary = "replays draw what eager calls do"


def check(setting: Setting, proof: Proof, name: str, vocab_size: int, n: int) -> None:
    """Captures a form of draw, or a sampler's steps with all that they remember."""
    if not setting.on_gpu:
        proof.skip(f"graph: {name}", "the device is no GPU")
    elif name in FORMS:
        _draws(setting, proof, f"graph: {name}", FORMS[name], vocab_size, n)
    else:
        _steps(setting, proof, f"graph: {name}", STEPS_OF[name], vocab_size, n)


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of a call, and what it returned; runs it twice beforehand."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def _draws(setting: Setting, proof: Proof, name: str, form: Form, vocab_size: int, n: int) -> None:
    static = random_batch(setting.generator(0), n, vocab_size, form)
    try:
        graph, drawn = captured(lambda: setting.draw(static))
    except RuntimeError as error:
        proof.check(name, False, error=str(error))
        return
    wrong: list[str] = []
    for seed in range(1, 5):
        if seed == 3:
            # Twice the rows, for which a workspace may have to grow: not away from under the graph.
            setting.draw(random_batch(setting.generator(seed), 2 * n, vocab_size, form))
            _scribble(setting)
        other = random_batch(setting.generator(seed), n, vocab_size, form)
        for into, tensor in zip(tree_leaves(static), tree_leaves(other)):
            if isinstance(into, Tensor):
                into.copy_(tensor)
        for tensor in tree_leaves(drawn):
            # What a replay does not write must not pass.
            if isinstance(tensor, Tensor):
                tensor.fill_(7)
        graph.replay()
        replayed = tree_map_only(Tensor, torch.clone, drawn)
        wrong += differing(replayed, setting.draw(other))
    proof.check(name, not wrong, rows=n, replays=4, wrong=wrong)


def _scribble(setting: Setting) -> None:
    """Writes over all memory that the allocator holds free; what is in use is not."""
    free = torch.cuda.memory_reserved(setting.device) - torch.cuda.memory_allocated(setting.device)
    blocks = []
    for size in (1 << 30, 1 << 26, 1 << 22, 1 << 18, 1 << 12):
        count = min(free // size, 64)
        blocks += [torch.full((size,), 0xFF, dtype=torch.uint8, device=setting.device) for _ in range(count)]
    torch.cuda.synchronize(setting.device)


def _steps(
    setting: Setting, proof: Proof, name: str, kinds: tuple[dict[str, object], ...], vocab_size: int, n: int
) -> None:
    """Two samplers with the same requests, one in a graph and one eager, go through the same steps."""
    in_graph, eager = (Steps(setting, kinds, vocab_size, n) for _ in range(2))
    try:
        graph, out = captured(in_graph.step)
        key, captures = in_graph.sampler.capture_key, 1
        for _ in range(2):
            eager.step()
        wrong: list[str] = []
        for number in range(_STEPS):
            for steps in (in_graph, eager):
                steps.fill(setting, number)
                if number == _STEPS // 2:
                    steps.others_arrive()
            if in_graph.sampler.capture_key != key:
                graph, out = captured(in_graph.step)
                key, captures = in_graph.sampler.capture_key, captures + 1
                for _ in range(2):
                    eager.step()
            for tensor in (out.token_ids, out.status, *(out.logprobs or ())[:3]):
                tensor.fill_(7)
            graph.replay()
            replayed = drawn_rows(out)
            wrong += [f"step {number}: {output}" for output in differing(replayed, drawn_rows(eager.step()))]
    except RuntimeError as error:
        proof.check(name, False, error=str(error))
        return
    proof.check(name, not wrong, rows=n, steps=_STEPS, captures=captures, wrong=wrong)


class Steps:
    """A sampler and the buffers of its step: rows of the batch change places, some are padding."""

    def __init__(self, setting: Setting, kinds: tuple[dict[str, object], ...], vocab_size: int, n: int) -> None:
        self.sampler = Sampler(n, vocab_size, device=setting.device, backend=setting.backend.name)
        self._kinds = kinds
        for i in range(n):
            self._add(i, seed=i)
        index = torch.arange(n, device=setting.device)
        self.logits = torch.zeros(n, vocab_size, device=setting.device)
        cu = torch.arange(n + 1, dtype=torch.int32, device=setting.device)
        self.rows = LogitsRows(index.clone(), index.clone(), index * 0, index * 0 + 4, index * 0, cu)
        self.fill(setting, -1)

    def fill(self, setting: Setting, number: int) -> None:
        """Other logits and requests in the same memory."""
        generator = setting.generator(100 + number)
        self.logits.normal_(0, 3, generator=generator)
        order = torch.randperm(len(self.logits), generator=generator, device=setting.device)
        which = torch.where(order % 9 == 8, -1, order)
        self.rows.idx_mapping.copy_(which)
        self.rows.expanded_idx_mapping.copy_(which)
        self.rows.positions.fill_(5 + number)

    def others_arrive(self) -> None:
        """Every third request leaves, and one of its kind takes its row."""
        for i in range(0, len(self.logits), 3):
            self.sampler.remove_request(i)
            self._add(i, seed=-i)
        self.sampler.apply_staged_writes()

    def _add(self, i: int, seed: int) -> None:
        params = SamplingParams(seed=seed, **self._kinds[i % len(self._kinds)])
        self.sampler.add_request(i, params, [1, 2, 3], [3])

    def step(self) -> SamplerOutput:
        """Draw a token for each row and remember it."""
        out = self.sampler(self.logits, self.rows)
        one = torch.ones_like(self.rows.cu_num_logits[1:])
        self.sampler.commit(self.rows.idx_mapping, out.token_ids.unsqueeze(1), one)
        return out
