"""A row's token and logprobs depend on no neighbour, order, state row, earlier request or idle filter, to the bit.

The cases take every path of the torch backend: greedy, unfiltered, cut from a list of the best tokens, cut from the
whole row, with edits or without.
"""

import dataclasses

import pytest
import torch

from drawlot import LogitsRows, Sampler, SamplingParams, functional, sample

VOCABS = (16, 300, 5003)
CASES = [
    {},
    {"temperature": 0},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1500, "temperature": 3.0},
    {"top_p": 0.2},
    {"top_p": 0.97, "temperature": 1.5},
    {"min_p": 0.02},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.001},
    {"logit_bias": {3: 5.0, 7: -100.0}},
    {"allowed_token_ids": [1, 4, 9, 15]},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.2, "top_p": 0.95},
    {"min_tokens": 40, "stop_token_ids": [0, 2], "max_tokens": 64},
    {"logit_bias": {5: 2.0}, "top_k": 5, "repetition_penalty": 0.8},
]
PROMPT = [3, 1, 4, 1, 5, 9]


def logits_of(generator, *shape):
    """Some rows flat, some steep, with ties."""
    steepness = 4 ** torch.randint(-1, 3, (*shape[:-1], 1), generator=generator).float()
    return (torch.randn(shape, generator=generator) * steepness * 16).round() / 16


@pytest.fixture(params=VOCABS)
def vocab_size(request):
    return request.param


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(11)


def requests(**more):
    """Each case three times, with seeds of its own."""
    cases = CASES * 3
    return [SamplingParams(**{"seed": 31 * i - 500, "logprobs": i % 4, **case, **more}) for i, case in enumerate(cases)]


def same_bits(a, b):
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


class Requests:
    """Requests in any state rows of a sampler, stepped in any order."""

    def __init__(self, vocab_size, size, **options):
        self.sampler = Sampler(size, vocab_size, backend="torch", **options)
        self.row_of, self.params, self.outputs, self.choices = {}, {}, {}, {}

    def add(self, name, row, params, output=(), choice=0):
        self.row_of[name], self.params[name], self.outputs[name] = row, params, list(output)
        self.choices[name] = choice
        self.sampler.add_request(row, params, PROMPT, output, choice)

    def remove(self, name):
        self.sampler.remove_request(self.row_of.pop(name))

    def step(self, names, logits):
        """One token for each; returns the output."""
        n = len(names)
        rows = torch.tensor([self.row_of[name] for name in names])
        positions = torch.tensor([len(PROMPT) + len(self.outputs[name]) for name in names])
        zeros, ones = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int32)
        cu = torch.arange(n + 1, dtype=torch.int32)
        out = self.sampler(logits, LogitsRows(rows, rows, zeros, positions, zeros, cu))
        self.sampler.commit(rows, out.token_ids.unsqueeze(1), ones)
        for name, token in zip(names, out.token_ids.tolist()):
            self.outputs[name].append(token)
        return out


@pytest.mark.parametrize(
    ("fp64", "mode"),
    [
        (False, "raw_logprobs"),
        (False, "processed_logprobs"),
        (True, "processed_logprobs"),
        (True, "raw_logprobs"),
    ],
)
def test_a_row_is_the_same_alone_and_in_any_batch_in_any_order(vocab_size, generator, fp64, mode):
    mine = requests()
    logits = logits_of(generator, 256, vocab_size)
    neighbours = [SamplingParams(seed=i, temperature=0.1 * (i % 20), top_k=i % 9) for i in range(256 - len(mine))]
    params = mine + neighbours
    positions = torch.randint(0, 2**40, (256,), generator=generator)
    choices = torch.randint(0, 128, (256,), generator=generator)
    outputs = torch.randint(0, 16, (256, 6), generator=generator).tolist()

    def drawn(rows):
        return sample(
            logits[rows],
            [params[i] for i in rows],
            positions=positions[rows],
            prompt_token_ids=[PROMPT] * len(rows),
            output_token_ids=[outputs[i] for i in rows],
            choice_index=choices[rows],
            use_fp64_gumbel=fp64,
            logprobs_mode=mode,
            backend="torch",
        )

    whole = drawn(list(range(256)))
    order = torch.randperm(256, generator=generator)
    permuted = drawn(order.tolist())
    assert same_bits(permuted.token_ids, whole.token_ids[order])
    assert same_bits(permuted.logprobs.logprobs, whole.logprobs.logprobs[order])
    assert same_bits(permuted.logprobs.logprob_token_ids, whole.logprobs.logprob_token_ids[order])
    for i in range(len(mine)):
        alone = drawn([i])
        columns = 1 + mine[i].logprobs
        assert alone.token_ids.item() == whole.token_ids[i].item(), mine[i]
        assert same_bits(alone.logprobs.logprobs[0], whole.logprobs.logprobs[i, :columns]), mine[i]
        assert same_bits(alone.logprobs.logprob_token_ids[0], whole.logprobs.logprob_token_ids[i, :columns])
        assert same_bits(alone.logprobs.selected_token_ranks[0], whole.logprobs.selected_token_ranks[i])


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_logprobs_on_or_off_draw_the_same_tokens(vocab_size, generator, mode):
    logits = logits_of(generator, len(requests()), vocab_size)
    more = {"prompt_token_ids": [PROMPT] * len(logits), "output_token_ids": [[2, 2]] * len(logits)}
    quiet = sample(logits, requests(logprobs=None), **more, backend="torch")
    assert quiet.logprobs is None
    for asked in ({"logprobs": 0}, {"logprobs": 5}, {"logprobs": -1}, {"logprobs": None, "logprob_token_ids": [3, 0]}):
        loud = sample(logits, requests(**asked), **more, backend="torch", logprobs_mode=mode)
        assert same_bits(loud.token_ids, quiet.token_ids)
        assert same_bits(loud.logprobs.logprob_token_ids[:, 0], quiet.token_ids)


@pytest.mark.parametrize("fp64", [False, True])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("idle", [{"top_k": "V"}, {"min_p": 1e-300}, {"top_k": "V", "top_p": 1.0, "min_p": 1e-300}])
def test_a_filter_that_keeps_everything_changes_nothing(vocab_size, generator, idle, fp64, mode):
    idle = {name: vocab_size if value == "V" else value for name, value in idle.items()}
    logits = logits_of(generator, 64, vocab_size)
    logits[::3, ::5] = -torch.inf
    plain = SamplingParams(seed=5, logprobs=3)
    positions = torch.arange(64)
    options = {"positions": positions, "use_fp64_gumbel": fp64, "logprobs_mode": mode, "backend": "torch"}
    off = sample(logits, plain, **options)
    on = sample(logits, dataclasses.replace(plain, **idle), **options)
    assert same_bits(on.token_ids, off.token_ids)
    for with_filter, without in zip(on.logprobs[:3], off.logprobs[:3]):
        assert same_bits(with_filter, without)


@pytest.mark.parametrize("fp64", [False, True])
def test_a_request_resumes_at_any_step_in_any_state_row(vocab_size, generator, fp64):
    steps, params = 6, requests()
    names = list(range(len(params)))
    logits = logits_of(generator, steps, len(params), vocab_size)
    choices = [name % 3 for name in names]

    def fresh():
        return Requests(vocab_size, 2 * len(params), use_fp64_gumbel=fp64)

    steady = fresh()
    for name in names:
        steady.add(name, name, params[name], choice=choices[name])
    wanted = [steady.step(names, logits[step]) for step in range(steps)]

    moving = fresh()
    row_of = torch.randperm(2 * len(params), generator=generator)[: len(params)].tolist()
    for name in names:
        moving.add(name, row_of[name], params[name], choice=choices[name])
    for step in range(steps):
        # At step s every request s, s + 6, s + 12 ... is put out and comes back in another's row.
        away = names[step::steps]
        rows = [moving.row_of[name] for name in away]
        for name in away:
            moving.remove(name)
        for name, row in zip(away, rows[1:] + rows[:1]):
            moving.add(name, row, params[name], moving.outputs[name], choices[name])
        order = torch.randperm(len(names), generator=generator)
        out = moving.step(order.tolist(), logits[step, order])
        assert same_bits(out.token_ids, wanted[step].token_ids[order])
        assert same_bits(out.logprobs.logprobs, wanted[step].logprobs.logprobs[order])
    assert moving.outputs == steady.outputs


def test_noise_keyed_by_batch_row_would_be_seen(monkeypatch, generator):
    logits, params, positions = logits_of(generator, 64, 300), SamplingParams(seed=1), torch.arange(64)

    def alone_as_together():
        together = sample(logits, params, positions=positions, backend="torch").token_ids
        rows = zip(logits.split(1), positions.split(1))
        alone = [sample(row, params, positions=position, backend="torch").token_ids for row, position in rows]
        return same_bits(torch.cat(alone), together)

    assert alone_as_together()
    monkeypatch.setattr(functional, "_positions", lambda positions, *_: torch.arange(len(positions)))
    assert not alone_as_together()
