"""The Triton backend, in Triton's interpreter, verifies as the reference does. On a GPU: `benchmarks.verify_gpu`."""

import numpy as np
import pytest
import torch
from torch import Tensor

from drawlot import (
    LogitsRows,
    RejectionSampler,
    RowStatus,
    Sampler,
    SamplingParams,
    SparseDraftLogits,
    VerifierOutput,
)
from tests.test_backends import same_logprobs
from tests.verification.cases import random_batch

triton = pytest.importorskip("triton")
summary = pytest.importorskip("drawlot.kernels.triton.summary")
step_verifier = pytest.importorskip("drawlot.kernels.triton.verification.step_verifier")
early_starts = pytest.importorskip("tests.early_starts")
interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")
pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

NEAR_TIE = 2.0**-18
K = 4
# Batches of six requests: each costs the interpreter some seconds. 4,500 ids are three blocks of the scan.
BATCHES = {1: 1, 3: 1, 129: 2, 300: 1, 4500: 1}


@pytest.mark.parametrize("vocab_size", BATCHES)
def test_random_batches(vocab_size: int, margins: list[Tensor]) -> None:
    rng = np.random.default_rng([50, vocab_size])
    done = 0
    while done < BATCHES[vocab_size]:
        batch = random_batch(rng, vocab_size, 6)
        # The interpreter's bfloat16 loses subnormal numbers.
        if batch.logits.dtype == torch.bfloat16 and bool((batch.logits.float().abs() < 1e-37).any()):
            continue
        done += 1
        margins.clear()
        exact, fast = batch.verify("reference"), batch.verify("triton")
        margin = margins[0] if margins else torch.full((6,), torch.inf)
        differs = different(fast, exact)
        for r in differs.nonzero().flatten().tolist():
            case = f"V={vocab_size} {batch.note} margin={margin[r]:.3g} {batch.methods[r]} {batch.params[r]}"
            assert margin[r] < NEAR_TIE, (case, fast.sampled_token_ids[r], exact.sampled_token_ids[r])
        assert torch.equal(fast.status, exact.status)
        if exact.logprobs is None:
            assert fast.logprobs is None
            continue
        counts = batch.rows.cu_num_logits.diff()
        rows = (~differs & (margin >= NEAR_TIE)).repeat_interleave(counts)
        emits = batch.rows.local_positions < exact.num_sampled.repeat_interleave(counts)
        same_logprobs(fast.logprobs, exact.logprobs, rows)
        assert (fast.logprobs.logprob_token_ids[~emits & rows] == -1).all()


def different(fast: VerifierOutput, exact: VerifierOutput) -> Tensor:
    """bool [R]"""
    tokens = (fast.sampled_token_ids != exact.sampled_token_ids).any(1)
    return tokens | (fast.num_sampled != exact.num_sampled) | (fast.num_accepted != exact.num_accepted)


def verifiers(v: int, params: list[SamplingParams], methods: list[str]) -> list[RejectionSampler]:
    """The backend's and the reference's, with the same requests."""
    made = []
    for backend in ("triton", "reference"):
        sampler = Sampler(len(params), v, backend=backend)
        verifier = RejectionSampler(sampler, num_speculative_tokens=K)
        for r, (each, method) in enumerate(zip(params, methods)):
            sampler.add_request(r, each, [1])
            verifier.set_method(r, method)
        made.append(verifier)
    return made


def rows_of(drafts: Tensor, counts: list[int], anchor: int = 0) -> LogitsRows:
    """counts: drafts that have a row."""
    n = torch.tensor(counts) + 1
    index = torch.arange(len(counts))
    local = torch.cat([torch.arange(count) for count in n])
    inputs = torch.cat([torch.cat((torch.zeros(1, dtype=torch.int64), ids[:c])) for ids, c in zip(drafts, counts)])
    cu_rows = torch.cat((torch.zeros(1), n.cumsum(0))).to(torch.int32)
    return LogitsRows(
        index, index.repeat_interleave(n), local, anchor + local, torch.where(inputs < -1, -2 - inputs, inputs), cu_rows
    )


def poison(verifier: RejectionSampler, number: int) -> None:
    """Fills outputs and scratch with a number, which may be a row's path, a count or an id; floats with NaN."""
    steps = verifier._steps
    memory, keeps = steps._memory, ("refused", "masks_one", "touched")
    judged = (getattr(memory.judged, name) for name in memory.judged._fields if name not in keeps)
    work = (*steps._work.tiles, *steps._work.lists, *steps._work.summary, *steps._work.whole)
    for part in (*judged, *memory.leftovers, *memory.verdicts, *memory.verified, *work):
        if isinstance(part, Tensor):
            integer = number % 256 if part.dtype == torch.uint8 else number
            part.fill_(torch.nan if part.dtype.is_floating_point else integer)


def test_a_step_leaves_nothing_behind_for_the_next() -> None:
    # All memory poisoned; drafts refused in one step are none in the next, and the other way round.
    torch.manual_seed(0)
    v, methods = 300, ["standard", "block", "standard", "coupled", "block"]
    params = [SamplingParams(seed=r, **extra) for r, extra in enumerate(({}, {}, {"top_k": 9}, {"top_p": 0.9}, {}))]
    fast, exact = verifiers(v, params, methods)
    counts = [4, 3, 2, 4, 0]
    refuse = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1], [0] * 4]) == 1
    for step in range(3):
        logits = torch.randn(sum(counts) + 5, v)
        drafts = torch.randint(0, v, (5, K))
        q = torch.randn(5, K, v)
        first = rows_of(drafts, counts).cu_num_logits[:-1].tolist()
        for r, n in enumerate(counts):
            # Likely drafts, drawn from much the same laws.
            logits[torch.arange(first[r], first[r] + n), drafts[r, :n]] += 6
            q[r, torch.arange(K), drafts[r]] += 5
        drafts = torch.where(torch.arange(K) < torch.tensor(counts).unsqueeze(1), drafts, -1)
        drafts = torch.where(refuse ^ (step == 1) & (drafts >= 0), -2 - drafts, drafts)
        given = logits, rows_of(drafts, counts, 10 * step), drafts, None if step == 2 else q
        poison(fast, (summary.LISTED.value, summary.WHOLE.value, -7)[step])
        expected, got = exact(*given), fast(*given)
        assert not different(got, expected).any(), step
        assert torch.equal(got.status, expected.status)
        # What programs on a GPU wait for: each row counts once, there or not, where rows may be weighed, and
        # so does each program. Some rows are left to be read whole, all of one request, whose top_p is flat.
        verdicts, control = fast._steps._memory.verdicts, fast._steps._work.tiles.control
        (done, _rows_done, known), programs = verdicts.counts[:3].tolist(), len(counts) * (K + 1)
        assert (done, known) == (programs, 0 if step == 2 else programs)
        decided = control[summary.UNDECIDED.value].item()
        assert decided & 0xFFFFFFFF == 0
        assert control[summary.COUNT.value].item() == decided >> 32 == counts[3] + 1


def test_rows_to_be_weighed_are_looked_for_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two requests at a time instead of 32, two tiles a block; one request has no drafts.
    monkeypatch.setattr(step_verifier, "GROUP", 2)
    monkeypatch.setattr(step_verifier, "WEIGH_TILES", 2)
    torch.manual_seed(3)
    v, counts = 600, [4, 3, 4, 0, 4, 4]
    filters = [{}, {}, {"top_k": 400, "top_p": 0.99}, {}, {"min_p": 1e-4}, {}]
    params = [SamplingParams(seed=r, **extra) for r, extra in enumerate(filters)]
    fast, exact = verifiers(v, params, ["block"] * len(params))
    q = torch.randn(len(counts), K, v)
    drafts = (q - torch.empty_like(q).exponential_().log_()).argmax(2)
    logits, first = torch.randn(sum(counts) + len(counts), v), 0
    for r, n in enumerate(counts):
        logits[first : first + n] = q[r, :n] + 0.3 * torch.randn(n, v)
        # p / q is about 0.9 of all drafts but the last, which hardly ever settles the others.
        lower = torch.tensor([0.1] * (n - 1) + [3.0] * (n > 0))
        logits[torch.arange(first, first + n), drafts[r, :n]] = q[r, torch.arange(n), drafts[r, :n]] - lower
        first += n + 1
    drafts = torch.where(torch.arange(K) < torch.tensor(counts).unsqueeze(1), drafts, -1)
    given = logits, rows_of(drafts, counts), drafts, q
    leftovers, tokens = fast._steps._memory.leftovers, fast._steps._memory.judged.tokens
    leftovers.masses.fill_(-1)
    with early_starts.touched_by_launches() as launches:
        expected, got = exact(*given), fast(*given)
    assert not different(got, expected).any()
    weighed = leftovers.masses[: len(logits), :5] >= 0
    assert weighed.any(1).sum() >= 8, weighed
    assert (weighed.any(1) == weighed.all(1)).all(), weighed
    assert len(set(got.num_accepted.tolist())) >= 3, got.num_accepted
    # A step ends after all that draw: somebody has looked at each token that is drawn meanwhile, emitted or not.
    last = next(launch for launch in launches if launch.kernel == "settle_weighed_kernel")
    is_open = torch.tensor(counts).repeat_interleave(torch.tensor(counts) + 1) > 0
    drawn = (is_open & (tokens[: len(logits)] != -2)).nonzero().flatten().tolist()
    assert len(drawn) == 5
    assert {tokens[row].data_ptr() for row in drawn} <= last.reads


def test_a_row_with_a_broken_law_is_not_sure() -> None:
    # Each draft is likelier than its law says, so that all are accepted, but for where a law is broken.
    fast, exact = verifiers(9, [SamplingParams(seed=r) for r in range(4)], ["block"] * 4)
    torch.manual_seed(4)
    logits, q = torch.zeros(20, 9), torch.zeros(4, K, 9)
    drafts = torch.randint(0, 9, (4, K))
    logits.view(4, K + 1, 9)[torch.arange(4).unsqueeze(1), torch.arange(K), drafts] = 2.0
    for r in range(3):
        q[1 + r, r] = torch.nan
    given = logits, rows_of(drafts, [4] * 4), drafts, q
    expected, got = exact(*given), fast(*given)
    assert not different(got, expected).any()
    assert got.num_accepted.tolist() == [4, *expected.num_accepted[1:].tolist()]
    assert got.num_accepted[1:].max() < 4


def test_a_law_of_few_tokens_that_is_none_says_nothing_of_others() -> None:
    # Listed tokens have no mass at all. Drafts that are not listed have q = 0 and are sure, listed ones are not; by
    # `block` no draft before such a one is either, since what is left of their rows is not known.
    fast, exact = verifiers(9, [SamplingParams(seed=r) for r in range(4)], ["block", "standard"] * 2)
    torch.manual_seed(5)
    logits, ids = torch.randn(20, 9), torch.randint(0, 4, (4, K, 2))
    drafts = torch.randint(4, 9, (4, K))
    drafts[2:, 2] = ids[2:, 2, 0]
    q = SparseDraftLogits(ids, torch.full((4, K, 2), -torch.inf))
    given = logits, rows_of(drafts, [4] * 4), drafts, q
    expected, got = exact(*given), fast(*given)
    assert not different(got, expected).any()
    assert got.num_accepted.tolist() == [4, 4, 0, 2]


def test_the_drafts_before_a_bad_row_are_the_last() -> None:
    # Their P, below 1, decides by itself: what is left of a bad row is not asked for.
    fast, exact = verifiers(9, [SamplingParams(seed=r) for r in range(6)], ["block"] * 6)
    torch.manual_seed(5)
    logits, q = torch.zeros(30, 9), torch.zeros(6, K, 9)
    drafts = torch.randint(0, 9, (6, K))
    q.scatter_(2, drafts.unsqueeze(2), 1.0)
    logits[1::5, 3] = torch.nan
    given = logits, rows_of(drafts, [4] * 6), drafts, q
    expected, got = exact(*given), fast(*given)
    assert not different(got, expected).any()
    assert torch.equal(got.status, expected.status)
    assert set(got.num_accepted.tolist()) == {0, 1}


def test_rows_after_the_last_request_are_skipped() -> None:
    fast, exact = verifiers(9, [SamplingParams(seed=r) for r in range(5)], ["block"] * 5)
    drafts, after = torch.zeros((5, K), dtype=torch.int64), 18
    rows = rows_of(drafts, [0] * 5)
    rows = rows._replace(
        expanded_idx_mapping=torch.nn.functional.pad(rows.expanded_idx_mapping, (0, after), value=-1),
        **{
            name: torch.nn.functional.pad(getattr(rows, name), (0, after))
            for name in ("local_positions", "positions", "input_ids")
        },
    )
    given = torch.zeros(5 + after, 9), rows, drafts, torch.zeros(5, K, 9)
    fast._steps._memory.verified.status.fill_(77)
    expected, got = exact(*given), fast(*given)
    assert not different(got, expected).any()
    assert got.status.tolist() == expected.status.tolist() == [0] * 5 + [int(RowStatus.SKIPPED)] * after


def test_temperatures_and_the_first_line_of_q() -> None:
    # Of three tokens, the drafted one is unlikely, and too likely by q: what is left of the first row has none of it.
    fast, exact = verifiers(
        3, [SamplingParams(seed=r, temperature=t) for r, t in enumerate((3.0, 0.4))], ["standard"] * 2
    )
    counts, rejected = [1, 1], set()
    for step in range(12):
        drafts = torch.tensor([[step % 3, -1, -1, -1]] * 2)
        q = torch.zeros(2, K, 3)
        q[:, 0, step % 3] = 4.0
        logits = torch.zeros(4, 3)
        logits[[0, 2], step % 3] = -1.0
        given = logits, rows_of(drafts, counts, 10 * step), drafts, q
        expected, got = exact(*given), fast(*given)
        assert not different(got, expected).any(), step
        rejected |= set((got.num_accepted == 0).nonzero().flatten().tolist())
    assert rejected == {0, 1}


def test_a_refused_draft_is_refused_once() -> None:
    fast, _ = verifiers(300, [SamplingParams(temperature=0)], ["standard"])
    logits = torch.zeros(2, 300)
    logits[0, 33], logits[0, 290] = 9, 8
    for refused, first in ((33, 290), (290, 33), (5, 33)):
        drafts = torch.tensor([[-2 - refused, -1, -1, -1]])
        out = fast(logits, rows_of(drafts, [1]), drafts)
        assert out.sampled_token_ids[0].tolist() == [first, -1, -1, -1, -1]


@pytest.mark.parametrize("method", ["standard", "block"])
def test_laws_of_drafts_in_a_wider_buffer(method: str) -> None:
    torch.manual_seed(1)
    v, counts = 200, [4, 4, 1]
    params = [SamplingParams(seed=r) for r in range(3)]
    fast, exact = verifiers(v, params, [method] * 3)
    buffer = torch.randn(3, K + 2, v + 8)
    lse = buffer[:, :K, :v].logsumexp(2)
    logits = torch.randn(12, v + 3)
    drafts = buffer[:, :K, :v].argmax(2)
    for q in (buffer[:, :K], buffer.transpose(0, 1).contiguous().transpose(0, 1)[:, :K]):
        for known in (None, lse):
            given = logits, rows_of(drafts, counts), drafts, q, known
            assert not different(fast(*given), exact(*given)).any()


@pytest.mark.parametrize("width", [128, 129, 132])
def test_loads_of_q_are_wide_only_where_all_its_lines_are_aligned(width: int) -> None:
    (fast, _), drafts = verifiers(width, [SamplingParams()] * 2, ["standard"] * 2), torch.zeros(2, K, dtype=torch.int64)
    q = torch.randn(2, K, width)
    assert q.data_ptr() % 16 == q.stride(0) * 4 % 16 == 0
    given = fast._steps._drafts(10, 2, rows_of(drafts, [K, K]), drafts, q, None).q.stand_in
    assert given.logits.data_ptr() == (16 if width % 4 == 0 else 1)


def test_tiles_are_read_as_long_as_they_can_win() -> None:
    # From hardly anything to all is left of a tile: the tiles with the best bounds seldom win.
    torch.manual_seed(2)
    v, requests = 4480, 6
    fast, exact = verifiers(v, [SamplingParams(seed=r) for r in range(requests)], ["standard"] * requests)
    logits, drafts = torch.randn(2 * requests, v), torch.full((requests, K), -1)
    drafts[:, 0] = 7
    logits[:, 7] = -9
    p = logits[::2].exp()
    left = p * (10 ** -(4 * torch.rand(requests, v // 128))).repeat_interleave(128, dim=1)
    q = p - left
    q[:, 7] += left.sum(1)
    given = logits, rows_of(drafts, [1] * requests), drafts, q.log().unsqueeze(1).expand(requests, K, v).contiguous()
    got, expected = fast(*given), exact(*given)
    assert (expected.num_accepted == 0).all()
    assert torch.equal(got.sampled_token_ids, expected.sampled_token_ids)


def test_blocks_of_which_several_rows_may_be_the_last() -> None:
    torch.manual_seed(3)
    v, requests = 5, 9
    fast, exact = verifiers(v, [SamplingParams(seed=r) for r in range(requests)], ["block"] * requests)
    # What was left in another step counts for nothing.
    fast._steps._memory.leftovers.masses.fill_(1e9)
    logits = torch.randn(requests * (K + 1), v)
    q = logits.view(requests, K + 1, v)[:, :K] + 0.7 * torch.randn(requests, K, v)
    drafts = torch.distributions.Categorical(logits=q).sample()
    given = logits, rows_of(drafts, [K] * requests), drafts, q
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()
    assert len(expected.num_accepted.unique()) > 2


@pytest.mark.parametrize("left", [range(20, 24), range(5000, 5004), range(9300, 9304)])
def test_what_is_left_of_a_row_lies_in_one_of_the_parts_that_are_weighed(left: range) -> None:
    # 9,600 ids are three of them, and the tile is drawn from the best of each: P_1 = 0.8, h_1 = 2/3, P_2 is hardly 0.
    v, requests, elsewhere = 9600, 8, 700
    fast, exact = verifiers(v, [SamplingParams(seed=r) for r in range(requests)], ["block"] * requests)
    logits, q = torch.zeros(requests, 3, v), torch.zeros(requests, K, v)
    q[:, 0, 7] = np.log(1.25)
    logits[:, 1], q[:, 1] = -30, -30
    logits[:, 1, list(left)] = np.log(1 / 4)
    logits[:, 1, elsewhere] = 0
    q[:, 1, [5, elsewhere]] = 0
    drafts = torch.tensor([7, 5, -1, -1]).repeat(requests, 1)
    given = logits.flatten(0, 1), rows_of(drafts, [2] * requests), drafts, q
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()
    drawn = expected.sampled_token_ids[expected.num_accepted == 1, 1]
    assert len(drawn) > 2
    assert set(drawn.tolist()) <= set(left)


def test_what_is_left_in_several_tiles_of_the_parts_that_are_weighed() -> None:
    # As above; of 24 tiles with as much left each is to be drawn, by its own noise.
    v, requests = 9600, 10
    fast, exact = verifiers(v, [SamplingParams(seed=r) for r in range(requests)], ["block"] * requests)
    logits, q = torch.zeros(requests, 3, v), torch.zeros(requests, K, v)
    q[:, 0, 7] = np.log(1.25)
    logits[:, 1], q[:, 1] = -30, -30
    logits[:, 1, 50::400] = np.log(1 / 24)
    logits[:, 1, 701] = 0
    q[:, 1, [5, 701]] = 0
    drafts = torch.tensor([7, 5, -1, -1]).repeat(requests, 1)
    given = logits.flatten(0, 1), rows_of(drafts, [2] * requests), drafts, q
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()
    drawn = expected.sampled_token_ids[expected.num_accepted == 1, 1] // 4096
    assert drawn.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("top_k", [5, 200])
def test_a_broken_law_of_tokens_that_the_row_does_not_keep(top_k: int) -> None:
    # Nothing that is kept looks broken, from a list or from tiles.
    torch.manual_seed(4)
    v, requests = 300, 8
    params = [SamplingParams(seed=r, top_k=top_k) for r in range(requests)]
    fast, exact = verifiers(v, params, ["standard"] * requests)
    logits, drafts = torch.randn(2 * requests, v), torch.full((requests, K), -1)
    drafts[:, 0] = 3
    logits[:, :10] = -20
    q = SparseDraftLogits(torch.arange(8).expand(requests, K, 8).contiguous(), torch.zeros(requests, K, 8))
    given = logits, rows_of(drafts, [1] * requests), drafts, q, torch.full((requests, K), -torch.inf)
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()


@pytest.mark.parametrize("top_k", [5, 200])
def test_a_weighed_row_whose_law_lies_outside_the_vocabulary(top_k: int) -> None:
    # P_1 = 0.8, and nothing is taken from the second row: h_1 = P_1.
    torch.manual_seed(5)
    v, requests = 300, 8
    params = [SamplingParams(seed=r, top_k=top_k) for r in range(requests)]
    fast, exact = verifiers(v, params, ["block"] * requests)
    logits = torch.randn(requests, 3, v)
    logits[:, 0] = -20
    logits[:, 0, [3, 150]] = torch.tensor([0.1, 0.9]).log()
    logits[:, 1, :10] = -20
    ids = torch.arange(8).repeat(requests, K, 1)
    # Ids of a wider vocabulary, which nothing reads.
    ids[:, 1] += 5000
    q = SparseDraftLogits(ids, torch.zeros(requests, K, 8))
    lse = torch.tensor([np.log(8), -torch.inf, 0, 0], dtype=torch.float32).repeat(requests, 1)
    drafts = torch.tensor([3, 4, -1, -1]).repeat(requests, 1)
    given = logits.flatten(0, 1), rows_of(drafts, [2] * requests), drafts, q, lse
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()
    assert (expected.num_accepted == 1).sum() > 3


def test_a_rejected_point_mass_is_not_drawn_again() -> None:
    v, requests = 130, 8
    fast, exact = verifiers(v, [SamplingParams(seed=r) for r in range(requests)], ["standard", "block"] * 4)
    logits, drafts = torch.zeros(2 * requests, v), torch.full((requests, K), -1)
    logits[:, 129] = 4
    drafts[:, 0] = 129
    given = logits, rows_of(drafts, [1] * requests), drafts
    got, expected = fast(*given), exact(*given)
    assert not different(got, expected).any()
    assert 0 < expected.num_accepted.sum() < requests - 1


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_the_rank_of_a_token_that_no_sampler_draws(mode: str) -> None:
    # Synthetic acceptance emits drafts that top_k drops or a mask forbids: after all that have a probability.
    v, outputs = 300, []
    torch.manual_seed(4)
    logits, drafts = torch.randn(8, v), torch.tensor([[7, -1, -1, -1], [9, -1, -1, -1]] * 2)
    logits[:, 9] = -torch.inf
    for backend in ("triton", "reference"):
        sampler = Sampler(4, v, backend=backend, logprobs_mode=mode)
        verifier = RejectionSampler(
            sampler, num_speculative_tokens=K, method="synthetic", synthetic_rates=[1.0, 0.0, 0.0, 0.0]
        )
        for r in range(4):
            sampler.add_request(r, SamplingParams(seed=r, top_k=5 if r < 2 else 0, logprobs=2), [1])
        outputs.append(verifier(logits, rows_of(drafts, [1] * 4), drafts))
    got, expected = (out.logprobs for out in outputs)
    assert (outputs[1].num_accepted == 1).all()
    same_logprobs(got, expected, torch.ones(8, dtype=torch.bool))
    if mode == "processed_logprobs":
        assert expected.selected_token_ranks[2] == 6
