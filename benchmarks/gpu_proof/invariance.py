"""A row's outputs depend on no batch size, order, stride, device or idle option, to the bit.

One thing may: the last bit of a logprob where the rows lie elsewhere in memory or have another dtype.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_proof import oracle
from benchmarks.gpu_proof.bits import differing, differing_but_for_rounding, picked, same_bits
from benchmarks.gpu_proof.edits_of_rows import moved
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, Batch, Form, random_batch, random_wanted
from drawlot.kernels.inputs import LogprobsWanted, SampledRows
from drawlot.kernels.registry import get_backend
from drawlot.sampling.logprobs import MODES

EDITS = ("bitmask", "allowed", "masked", "bias", "penalties")
FORMS = {
    "plain": PLAIN,
    "raw logprobs": PLAIN._replace(mode="raw_logprobs"),
    "processed logprobs, edits": PLAIN._replace(mode="processed_logprobs", edits=EDITS),
    "bfloat16, raw logprobs, edits": Form(torch.bfloat16, "contiguous", EDITS, "raw_logprobs", False),
    "float64 noise, raw logprobs": Form(torch.float16, "contiguous", (), "raw_logprobs", True),
}

SIZES = (129, 1024), (4097, 1024), (128_256, 512)
"""Vocabularies, and rows of a batch"""


def prove(setting: Setting, proof: Proof) -> None:
    """Each comparison is with one call of the whole batch."""
    sizes = ((129, 64), (300, 64)) if setting.small else SIZES
    # The widest first, since they take longest.
    proof.apart(setting, check_rows, [(name, *size) for size in reversed(sizes) for name in FORMS])
    proof.apart(setting, check_logprobs_or_not, [(*size, edits) for size in sizes for edits in ((), EDITS)])
    _planted(setting, proof, *sizes[0])
    proof.summary = "same bits for every batch size, order and stride, with logprobs or not"


def prove_idle_filters(setting: Setting, proof: Proof) -> None:
    """Of the widest rows."""
    check_idle_filters(setting, proof, *((300, 64) if setting.small else SIZES[-1]))
    proof.summary = "filters that keep everything change no bit"


def prove_devices(setting: Setting, proof: Proof) -> None:
    """On the CPU, too."""
    sizes = ((129, 64), (300, 64)) if setting.small else ((129, 4096), (4097, 8192), (128_256, 512))
    _devices(setting, proof, sizes)
    _given_tokens(setting, proof, sizes)
    proof.summary = "the CPU's tokens, and its logprobs of given ones"


def check_rows(setting: Setting, proof: Proof, name: str, vocab_size: int, n: int) -> None:
    """One batch in every disguise."""
    batch = random_batch(setting.generator(n), n, vocab_size, FORMS[name])
    whole, compared, wrong = setting.draw(batch), 0, set()
    for disguise, drawn, index in _disguises(setting, batch):
        compared += len(drawn.token_ids)
        wrong |= {f"{disguise}: {output}" for output in differing(drawn, picked(whole, index))}
    for disguise, drawn in _layouts(setting, batch):
        compared += n
        wrong |= {f"{disguise}: {output}" for output in differing_but_for_rounding(drawn, whole)}
    proof.check(f"{name}, V = {vocab_size}", not wrong, rows=n, rows_compared=compared, wrong=sorted(wrong))


def _disguises(setting: Setting, batch: Batch) -> Iterator[tuple[str, SampledRows, Tensor | slice]]:
    """Other ways to draw the same rows: what they are, what was drawn, and which rows these are."""
    n = len(batch.logits)
    for size in (1, 2, 3, 7, 64, 129, 256, 300):
        # Single rows are many calls: the first and last will do.
        starts = range(0, n, size) if size >= 64 else [0, size, n // 2, n - size]
        for start in starts:
            rows = slice(start, min(n, start + size))
            yield f"{size} at a time", setting.draw(_some(batch, rows)), rows
    for seed in range(3):
        order = torch.randperm(n, generator=setting.generator(seed), device=setting.device)
        edits, wanted = moved(batch.edits, order), batch.wanted and batch.wanted.pick(order)
        shuffled = Batch(batch.logits[order], batch.params.pick(order), edits, wanted, batch.wide)
        yield "another order", setting.draw(shuffled), order
    for _ in range(10):
        yield "again", setting.draw(batch), slice(0, n)


def _layouts(setting: Setting, batch: Batch) -> Iterator[tuple[str, SampledRows]]:
    """The same rows elsewhere in memory: what was done, and what was drawn."""
    vocab_size = batch.logits.shape[1]
    for before, after in ((0, 1), (1, 0), (3, 4), (0, 63), (5, 128)):
        wider = torch.nn.functional.pad(batch.logits, (before, after), value=torch.nan)
        strided = wider[:, before : before + vocab_size]
        yield f"stride {wider.shape[1]}, offset {before}", setting.draw(batch._replace(logits=strided))
    yield "columns apart", setting.draw(batch._replace(logits=batch.logits.t().contiguous().t()))
    if batch.logits.dtype != torch.float32:
        yield "as float32", setting.draw(batch._replace(logits=batch.logits.float()))


def _some(batch: Batch, rows: slice) -> Batch:
    edits, wanted = batch.edits.rows(rows.start, rows.stop), batch.wanted and batch.wanted.pick(rows)
    return Batch(batch.logits[rows], batch.params.pick(rows), edits, wanted, batch.wide)


def check_logprobs_or_not(setting: Setting, proof: Proof, vocab_size: int, n: int, edits: tuple[str, ...]) -> None:
    """Tokens are the same whatever logprobs are asked for."""
    quiet = random_batch(setting.generator(n), n, vocab_size, PLAIN._replace(edits=edits))
    tokens, wrong = setting.draw(quiet).token_ids, []
    for mode in MODES:
        wanted = random_wanted(setting.generator(1), n, vocab_size, mode)
        if not same_bits(setting.draw(quiet._replace(wanted=wanted)).token_ids, tokens):
            wrong.append(mode)
    proof.check(f"logprobs or not, {len(edits)} edits, V = {vocab_size}", not wrong, rows=n, wrong=wrong)


def check_idle_filters(setting: Setting, proof: Proof, vocab_size: int, n: int) -> None:
    """A filter that keeps everything changes nothing."""
    form = PLAIN._replace(mode="processed_logprobs")
    batch = random_batch(setting.generator(4), n, vocab_size, form)
    off = batch.params._replace(
        temperature=batch.params.temperature.clamp(min=1.0),
        top_k=torch.zeros_like(batch.params.top_k),
        top_p=torch.ones_like(batch.params.top_p),
        min_p=torch.zeros_like(batch.params.min_p),
    )
    right = setting.draw(batch._replace(params=off))
    # exp(-690) is above 1e-300; rows that reach lower are not kept whole.
    finite = batch.logits.float().nan_to_num(nan=0, posinf=0, neginf=0)
    near = finite.amax(1) - finite.amin(1) < 600
    for name, idle in {
        "min_p = 1e-300": off._replace(min_p=torch.full_like(off.min_p, 1e-300)),
        "top_k = V": off._replace(top_k=torch.full_like(off.top_k, vocab_size)),
        "both": off._replace(min_p=torch.full_like(off.min_p, 1e-300), top_k=torch.full_like(off.top_k, vocab_size)),
    }.items():
        wrong = differing(picked(setting.draw(batch._replace(params=idle)), near), picked(right, near))
        proof.check(f"idle filter: {name}", not wrong, rows=int(near.sum()), wrong=wrong)


def _devices(setting: Setting, proof: Proof, sizes: tuple[tuple[int, int], ...]) -> None:
    """The torch backend on the CPU draws the same tokens from equal float32 logits, near-ties excused."""
    on_cpu, rows, excused, wrong = get_backend("torch", torch.device("cpu")), 0, 0, 0
    for vocab_size, n in sizes:
        batch = random_batch(setting.generator(5), n, vocab_size, PLAIN._replace(edits=EDITS))
        drawn, expected = setting.draw(batch), oracle.sample_rows(batch.logits, batch.params, batch.edits)
        host = on_cpu.sample_rows(batch.logits.cpu(), _on_cpu(batch.params), _on_cpu(batch.edits), None)
        differs = (drawn.token_ids.cpu() != host.token_ids) | (drawn.status.cpu() != host.status)
        assert expected.margin is not None
        near = expected.margin.cpu() < oracle.NEAR_TIE
        rows, excused, wrong = rows + n, excused + int((differs & near).sum()), wrong + int((differs & ~near).sum())
    proof.check("the torch backend on the CPU", wrong == 0 and excused <= 3, rows=rows, near_ties=excused, wrong=wrong)


def _given_tokens(setting: Setting, proof: Proof, sizes: tuple[tuple[int, int], ...]) -> None:
    """The torch backend on the CPU tells the same of given tokens, where nothing is drawn; values but for rounding."""
    on_cpu = get_backend("torch", torch.device("cpu"))
    for vocab_size, n in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            given = given_tokens(setting, n, vocab_size, dtype)
            ids, values, ranks = (part.cpu() for part in setting.backend.logprobs_of(*given))
            host = on_cpu.logprobs_of(*_on_cpu(given))
            same = torch.equal(ids, host[0]) and torch.equal(ranks, host[2])
            proof.check(
                f"logprobs of given tokens, V = {vocab_size}, {dtype}",
                same and torch.allclose(values, host[1], rtol=1e-6, atol=1e-5),
                rows=n,
            )


def given_tokens(
    setting: Setting, n: int, vocab_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, LogprobsWanted]:
    """Logits of which some tie, a token of each row, and who wants what of it: five top tokens, or two given ones."""
    generator, on = setting.generator(7), setting.device
    logits = (torch.randn(n, vocab_size, generator=generator, device=on) * 8).round() / 4
    ids = torch.randint(vocab_size, (n, 3), generator=generator, device=on)
    everyone, given = torch.ones(n, dtype=torch.bool, device=on), ids[:, 1:].clone()
    given[::2] = -1
    num_top = torch.where(given[:, 0] < 0, 5, 0)
    return logits.to(dtype), ids[:, 0].contiguous(), LogprobsWanted("raw_logprobs", everyone, num_top, given, 5)


def _on_cpu(part: Any) -> Any:
    """The same, with its tensors on the CPU."""
    if isinstance(part, Tensor):
        return part.cpu()
    if isinstance(part, tuple):
        parts = [_on_cpu(each) for each in part]
        return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)
    return part


def _planted(setting: Setting, proof: Proof, vocab_size: int, n: int) -> None:
    """Noise keyed by batch row would be seen."""

    def draw(batch: Batch) -> SampledRows:
        place = torch.arange(len(batch.logits), device=setting.device)
        return setting.draw(batch._replace(params=batch.params._replace(position=place)))

    batch = random_batch(setting.generator(6), n, vocab_size, PLAIN)
    half = slice(n // 2, n)
    seen = differing(draw(_some(batch, half)), picked(draw(batch), half))
    proof.check("seen: noise keyed by batch row", seen == ["tokens"])
