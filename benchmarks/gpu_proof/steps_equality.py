"""The product's sampler, with its own tables and edits, draws what the oracle draws through drawlot's plain ones."""

import torch
from torch import Tensor

from benchmarks.gpu_proof import logprob_oracle, oracle
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.steps import STATE_ROWS, Script
from drawlot import LogprobsTensors, RowStatus, Sampler, SamplerOutput
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.sampling.logprobs import MODES


class OracleSampler:
    """A sampler that the oracle draws for; it keeps the margins of its last call."""

    def __init__(self, setting: Setting, vocab_size: int, mode: str, wide: bool) -> None:
        self.margin = torch.empty(0)
        self.sampler = Sampler(
            STATE_ROWS,
            vocab_size,
            device=setting.device,
            logprobs_mode=mode,
            use_fp64_gumbel=wide,
            backend="torch",
        )
        self.sampler.backend = self.sampler.backend._replace(name="oracle", sample_rows=self._sample_rows)

    def _sample_rows(
        self, logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
    ) -> SampledRows:
        drawn = oracle.sample_rows(logits, params, edits, wide=wide)
        assert drawn.margin is not None
        self.margin = drawn.margin
        if wanted is None:
            return drawn
        return drawn._replace(logprobs=logprob_oracle.logprobs(logits, params, edits, drawn.token_ids, wanted))


def plays(setting: Setting) -> list[tuple[int, str, int]]:
    """The sizes, modes and seeds to play."""
    sizes = (129, 1000) if setting.small else (129, 4097, 128_256)
    return [(vocab_size, mode, seed) for vocab_size in sizes for seed, mode in enumerate(MODES)]


def compile_plays(setting: Setting, vocab_size: int, mode: str, seed: int) -> None:
    """Have all that a play launches compiled by all processors at once: one after the other takes many minutes."""
    if setting.backend.name != "triton":
        return
    from drawlot.kernels.triton.launch import compiling_ahead

    with compiling_ahead():
        lead(_product(setting, vocab_size, mode, seed), Script(setting, vocab_size, seed), _num_steps(setting))


def lead(product: Sampler, script: Script, num_steps: int) -> None:
    """Leads a sampler that draws nothing, since its kernels are being compiled, through some steps."""
    for _ in range(num_steps):
        script.arrivals([product])
        step = script.step()
        product(*step)
        script.commit([product], step.rows, torch.zeros(len(step.logits), dtype=torch.int64))


def _product(setting: Setting, vocab_size: int, mode: str, seed: int) -> Sampler:
    return Sampler(
        STATE_ROWS,
        vocab_size,
        device=setting.device,
        logprobs_mode=mode,
        use_fp64_gumbel=_is_wide(seed),
        backend=setting.backend.name,
    )


def _is_wide(seed: int) -> bool:
    return seed == 3


def _num_steps(setting: Setting) -> int:
    return 4 if setting.small else 12


def play(setting: Setting, proof: Proof, vocab_size: int, mode: str, seed: int, excused: list[str]) -> int:
    """Leads both through the same steps; the number of rows. Appends near-ties to `excused`."""
    judge = OracleSampler(setting, vocab_size, mode, _is_wide(seed))
    product = _product(setting, vocab_size, mode, seed)
    both, script, wrong, rows = (product, judge.sampler), Script(setting, vocab_size, seed), [], 0
    steps = _num_steps(setting)
    for number in range(steps):
        script.arrivals(both)
        step = script.step()
        right = judge.sampler(*step)
        drawn = product(*step)
        differs = (drawn.token_ids != right.token_ids) | (drawn.status != right.status)
        near = judge.margin < oracle.NEAR_TIE
        bad = differs & (~near | (drawn.status != right.status))
        judged = ~differs & (right.status != int(RowStatus.SKIPPED)) & (~near if mode.startswith("processed") else ~bad)
        bad |= judged & _wrong_columns(drawn, right)
        rows += len(near)
        for row in (differs | bad).nonzero().flatten().tolist():
            state, local = int(step.rows.expanded_idx_mapping[row]), int(step.rows.local_positions[row])
            line = f"V {vocab_size}, {mode}, step {number}, row {row} (state row {state}, local {local}): drawn "
            line += f"{int(drawn.token_ids[row])}, oracle {int(right.token_ids[row])}, margin {judge.margin[row]:.3g}"
            (wrong if bad[row] else excused).append(line)
        script.commit(both, step.rows, right.token_ids)
    name = f"steps of a sampler, V = {vocab_size}, {mode}"
    proof.check(name, not wrong, steps=steps, rows=rows, wrong=len(wrong), examples=wrong[:30])
    return rows


def _wrong_columns(drawn: SamplerOutput, right: SamplerOutput) -> Tensor:
    """bool [N]: other ids, ranks or logprobs; either side may have more columns than any row uses."""
    n, device = len(right.token_ids), right.token_ids.device
    width = max((out.logprobs.logprobs.shape[1] for out in (drawn, right) if out.logprobs is not None), default=1)
    ids, values, ranks = _columns(drawn.logprobs, n, width, device)
    right_ids, right_values, right_ranks = _columns(right.logprobs, n, width, device)
    close = values == right_values.float()
    close |= (values - right_values).abs() <= 1e-6 * right_values.abs().clamp(min=1)
    return (ids != right_ids).any(1) | ~close.all(1) | (ranks != right_ranks)


def _columns(logprobs: LogprobsTensors | None, n: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    """ids, logprobs and ranks with unused columns up to the width."""
    ids = torch.full((n, width), -1, device=device)
    values = torch.full((n, width), -torch.inf, dtype=torch.float64, device=device)
    ranks = torch.zeros(n, dtype=torch.int64, device=device)
    if logprobs is not None:
        used = logprobs.logprobs.shape[1]
        ids[:, :used], values[:, :used], ranks = logprobs.logprob_token_ids, logprobs.logprobs, logprobs[2]
    return ids, values, ranks
