"""Bad rows are flagged and touch no other; every output is written, nothing else is, and padding is never read."""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.gpu_proof.bits import differing, differing_but_for_rounding, drawn_rows, outputs, picked, same_bits
from benchmarks.gpu_proof.guard import Guard
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, Batch, Form, random_batch
from benchmarks.gpu_proof.steps import play
from drawlot import LogitsRows, RowStatus, Sampler, SamplingParams
from drawlot.kernels.inputs import Edits, SampledRows

_EVERYTHING = ("bitmask", "allowed", "masked", "bias", "penalties")
FORMS = (
    PLAIN,
    PLAIN._replace(mode="raw_logprobs"),
    PLAIN._replace(mode="processed_logprobs", wide=True),
    Form(torch.bfloat16, "odd base", (), "raw_logprobs", False),
    Form(torch.float16, "padded", ("bitmask",), "raw_logits", False),
    Form(torch.float32, "padded", _EVERYTHING, "raw_logprobs", False),
    Form(torch.bfloat16, "contiguous", _EVERYTHING, "processed_logits", True),
)

SIZES, SIZES_OF_STEPS = (128_256, 4097, 129, 3), (129, 4097)
"""Vocabularies; the widest first, since they take longest"""


def prove(setting: Setting, proof: Proof) -> None:
    """Of draws of all sizes."""
    sizes = (129, 3) if setting.small else SIZES
    # Each form by itself, since compiling it takes a minute and more.
    proof.apart(setting, check_form, [(vocab_size, number) for vocab_size in sizes for number in range(len(FORMS))])
    _planted(setting, proof)
    proof.summary = "bad rows flagged, others unchanged to the bit, memory around tensors untouched"


def prove_steps(setting: Setting, proof: Proof) -> None:
    """Of steps of a sampler."""
    sizes = (129, 300) if setting.small else SIZES_OF_STEPS
    proof.apart(setting, _memory_of_steps, [(vocab_size,) for vocab_size in sizes])
    proof.summary = "memory around the tensors of steps untouched, and nothing read that was not written"


def prove_ids(setting: Setting, proof: Proof) -> None:
    """Of every id of a vocabulary, and of what lies past it."""
    check_every_id(setting, proof, 130 if setting.small else 4097)
    check_padding(setting, proof, 300 if setting.small else 4097)
    proof.summary = "bad values flagged at every id, columns and rows of nobody never read"


def check_form(setting: Setting, proof: Proof, vocab_size: int, number: int) -> None:
    """A form's memory, then neighbours of bad rows; in this order, so that a workspace which stays is guarded too."""
    form = FORMS[number]
    name = f"V = {vocab_size}, {str(form.dtype)[6:]}, {form.mode}, {len(form.edits)} edits"
    _memory(setting, proof, name, random_batch(setting.generator(number), 37, vocab_size, form))
    if vocab_size > 3:
        _neighbours(setting, proof, name, vocab_size, form)


def _memory(setting: Setting, proof: Proof, name: str, batch: Batch) -> None:
    """Draws amid two kinds of poison: walls untouched, inputs as they were, outputs the same and so fully written."""
    guards = Guard(0xFF), Guard(0x7F)
    wrong: list[str] = []
    held: list[bool] = []
    drawn = []
    for guard in guards:
        guarded: Batch = tree_map_only(Tensor, guard.guarded, batch)
        with guard:
            drawn.append(setting.draw(guarded))
        held += [guard.holds(tensor) for tensor in outputs(drawn[-1]).values()]
        if not all(map(_same, tree_leaves(guarded), tree_leaves(batch))):
            wrong.append("an input was written to")
    plain = setting.draw(batch)
    wrong += [output for rows in drawn for output in differing(rows, plain)]
    proof.check(f"outputs are fully written, inputs never, {name}", not wrong, draws=len(guards), wrong=wrong)
    _walls(proof, name, guards)
    if any(held):
        proof.check(f"outputs lie in guarded memory, {name}", all(held), outputs=len(held), guarded=sum(held))
    else:
        proof.skip(f"outputs lie in guarded memory, {name}", "no operation of torch made them")


def _memory_of_steps(setting: Setting, proof: Proof, vocab_size: int) -> None:
    """The tables of a sampler too lie between walls, and nothing is read of them that was not written."""
    guards, wrong = (Guard(0xFF), Guard(0x7F)), []
    for seed in range(2):
        plain = play(setting, vocab_size, seed)
        for guard in guards:
            with guard:
                guarded = play(setting, vocab_size, seed)
            wrong += [name for a, b in zip(guarded, plain) for name in differing(a, b)]
    proof.check(f"steps of a sampler amid poison, V = {vocab_size}", not wrong, wrong=wrong)
    _walls(proof, f"steps, V = {vocab_size}", guards)


def _walls(proof: Proof, name: str, guards: tuple[Guard, Guard]) -> None:
    touched = sum(guard.touched() for guard in guards)
    proof.check(f"memory around tensors, {name}", touched == 0, tensors=sum(map(len, guards)), bytes_written=touched)


def _planted(setting: Setting, proof: Proof) -> None:
    """A write one element past an output, and an output that is not written, are both seen."""
    tokens = []
    for poison in (0xFF, 0x7F):
        with Guard(poison) as guard:
            tokens.append(torch.empty(37, dtype=torch.int64, device=setting.device))
        end = tokens[-1].storage_offset() + 37
        tokens[-1].as_strided((1,), (1,), end).fill_(0)
        proof.check("seen: one element past the end", guard.touched() == 8, bytes_written=guard.touched())
    unwritten = [SampledRows(part, part.to(torch.uint8), None) for part in tokens]
    proof.check("seen: an unwritten output", differing(*unwritten) == ["tokens", "status"])


def _neighbours(setting: Setting, proof: Proof, name: str, vocab_size: int, form: Form) -> None:
    """Every fourth row is made bad, in one of four ways; the others must not notice."""
    n = 128
    clean = random_batch(setting.generator(vocab_size), n, vocab_size, form)
    rows = torch.arange(n, device=setting.device)
    # With the same strides: elsewhere in memory sums may be made in another order.
    logits, way = (
        torch.empty_strided(clean.logits.shape, clean.logits.stride(), dtype=form.dtype, device=setting.device),
        rows // 4 % 4,
    )
    logits.copy_(clean.logits)
    bad = rows % 4 == 1
    column = torch.randint(vocab_size, (n,), generator=setting.generator(1), device=setting.device)
    column[way == 3] = vocab_size - 1
    for number, poison in ((0, torch.nan), (1, torch.inf), (3, -torch.nan)):
        chosen = bad & (way == number)
        logits[rows[chosen], column[chosen]] = poison
    logits[bad & (way == 2)] = -torch.inf
    drawn, before = setting.draw(clean._replace(logits=logits)), setting.draw(clean)
    flag = torch.where(way == 2, int(RowStatus.EMPTY_SUPPORT), int(RowStatus.NONFINITE))
    wrong = differing(picked(drawn, ~bad), picked(before, ~bad))
    if not bool((drawn.status == flag)[bad].all() and (drawn.token_ids == -1)[bad].all()):
        wrong.append("flags of bad rows")
    if drawn.logprobs is not None:
        ids, values, ranks = (column[bad] for column in drawn.logprobs)
        if not bool((ids == -1).all() and (values == -torch.inf).all() and (ranks == 0).all()):
            wrong.append("logprobs of bad rows")
    proof.check(f"bad neighbours, {name}", not wrong, bad=int(bad.sum()), others=int((~bad).sum()), wrong=wrong)


def check_every_id(setting: Setting, proof: Proof, vocab_size: int) -> None:
    """Row i has something special at id i alone: NaN, +inf, or its only live token."""
    base = random_batch(setting.generator(2), vocab_size, vocab_size, PLAIN)
    ids = torch.arange(vocab_size, device=setting.device)
    empty = torch.full((vocab_size, vocab_size), -torch.inf, device=setting.device)
    zeros = torch.zeros_like(empty)
    # The same under a grammar that allows one id, another one: a mask does not hide a bad logit.
    bitmask = torch.zeros(vocab_size, -(-vocab_size // 32), dtype=torch.int32, device=setting.device)
    bitmask[:, 0] = 1
    for name, value, rest, edits in (
        ("NaN", torch.nan, zeros, Edits()),
        ("+inf", torch.inf, zeros, Edits()),
        ("NaN under a mask", torch.nan, zeros, Edits(bitmask)),
        ("the only live token", 0.0, empty, Edits()),
    ):
        logits = rest.clone()
        logits[ids, ids] = value
        drawn = setting.draw(base._replace(logits=logits, edits=edits))
        live = name == "the only live token"
        right = drawn.token_ids == (ids if live else -1)
        right &= drawn.status == (0 if live else int(RowStatus.NONFINITE))
        proof.check(f"{name} at every id", bool(right.all()), rows=vocab_size, wrong=int((~right).sum()))


def check_padding(setting: Setting, proof: Proof, vocab_size: int) -> None:
    """Columns past the vocabulary and rows that map to no request may hold anything."""
    n = 64
    sampler = Sampler(n, vocab_size, device=setting.device, backend=setting.backend.name)
    kinds: tuple[dict[str, float], ...] = ({}, {"temperature": 0}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9})
    for i in range(n):
        sampler.add_request(i, SamplingParams(seed=i, logprobs=3, **kinds[i % 4]), ())
    index = torch.arange(n, device=setting.device)
    cu = torch.arange(n + 1, dtype=torch.int32, device=setting.device)
    rows = LogitsRows(index, index, index * 0, index + 9, index * 0, cu)
    logits = torch.randn(n, vocab_size, generator=setting.generator(3), device=setting.device)
    right = drawn_rows(sampler(logits, rows))
    for poison in (torch.nan, torch.inf, 1000.0, -torch.inf):
        padded = torch.nn.functional.pad(logits, (0, 63), value=poison)
        wrong = differing_but_for_rounding(drawn_rows(sampler(padded, rows)), right)
        proof.check(f"columns past the vocabulary hold {poison}", not wrong, wrong=wrong)
    skipped = index % 3 == 1
    logits[skipped] = torch.nan
    out = sampler(logits, rows._replace(expanded_idx_mapping=torch.where(skipped, -1, index)))
    wrong = differing(drawn_rows(out), picked(right, ~skipped))
    flagged = torch.equal(out.status == int(RowStatus.SKIPPED), skipped)
    proof.check("rows of no request", not wrong and flagged, wrong=wrong)


def _same(a: object, b: object) -> bool:
    return same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
