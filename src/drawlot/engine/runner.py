"""One step on the device: a forward over a flat batch, logits only where they are wanted, then the sampler."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drawlot.engine.attention import allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.engine.config import EngineConfig, ModelLimits
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.request import Choice, Request
from drawlot.engine.scheduler import Chunk
from drawlot.engine.stats import EngineStats
from drawlot.outputs import LogitsRows, LogprobsTensors
from drawlot.sampling import Sampler
from drawlot.sampling.logprobs import gather_logprobs, token_logprobs


class Drawn(NamedTuple):
    """One token for each of `choices`, on the host."""

    choices: Sequence[Choice] = ()
    token_ids: Sequence[int] = ()
    status: Sequence[int] = ()
    logprobs: LogprobsTensors | None = None


class StepResult(NamedTuple):
    """What a step has computed, on the host."""

    drawn: Drawn
    scored: list[tuple[Choice, list[float] | None]]
    """Logprobs of the labels of scoring requests; None where the row has no finite maximum"""
    prompts: list[tuple[Choice, LogprobsTensors | None]]
    """The next rows of prompt logprobs; None where one of them has no finite maximum"""


class _Step(NamedTuple):
    """Chunks by what is wanted of them, with places in the staging."""

    drawing: list[Chunk]
    scoring: list[Chunk]
    prompts: list[tuple[Chunk, range]]
    """Positions of the prompt whose next token's logprobs are wanted"""
    logits_rows: int
    state_rows: int
    draw_positions: int
    last_tokens: int


class Runner:
    """Owns the model, the device's side of the cache and the sampler."""

    def __init__(
        self,
        model: Any,
        limits: ModelLimits,
        config: EngineConfig,
        cache: KVCache,
        sampler: Sampler,
        stats: EngineStats,
    ) -> None:
        self.model = model
        self.config = config
        self.cache = cache
        self.sampler = sampler
        self.stats = stats
        self._windows = limits.windows
        self._pools = allocate_pools(
            limits.layers, config.num_kv_blocks + 1, config.block_size, config.dtype, config.device
        )

    def add(self, choice: Choice) -> None:
        """Admit a choice, new or back from waiting, to its row."""
        request = choice.request
        num_prompt = len(request.prompt_token_ids)
        self.sampler.add_request(
            choice.row,
            request.params,
            request.prompt_token_ids,
            choice.token_ids[num_prompt:],
            choice.index,
            request.bad_words_token_ids,
        )

    def remove(self, row: int) -> None:
        """Free a row."""
        self.sampler.remove_request(row)

    @torch.inference_mode()
    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that hold NaN, which no mask would hide from their next owner."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.config.device)
        for pool in self._pools:
            pool.keys.index_fill_(0, index, 0)
            pool.values.index_fill_(0, index, 0)

    @torch.inference_mode()
    def step(self, chunks: Sequence[Chunk]) -> StepResult:
        """Compute the chunks and draw a token for each that ends with its choice's last token."""
        spans = {}
        for chunk in chunks:
            choice = chunk.choice
            new = choice.token_ids[choice.num_computed : chunk.end]
            spans[choice.row] = chunk, Span(choice.row, choice.num_computed, new)
        batch = BatchBuilder(
            [span for _, span in spans.values()], self.cache.tables, self.config.block_size, self._windows
        )
        wanted = _stage(batch, [spans[span.row][0] for span in batch.spans])
        staged = batch.staging.move(self.config.device)
        input_ids, positions, paged = batch.build(staged, self._pools, self.config.dtype)

        begin = time.perf_counter()
        logits = self.model(
            input_ids=input_ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=staged[wanted.logits_rows],
            paged=paged,
        ).logits[0]
        end = time.perf_counter()
        self.stats.forward_seconds += end - begin
        result = self._read(logits, wanted, staged)
        self.stats.sampling_seconds += time.perf_counter() - end
        return result

    def _read(self, logits: Tensor, wanted: _Step, staged: Sequence[Tensor]) -> StepResult:
        drawn = self._draw(logits, wanted, staged) if wanted.drawing else Drawn()
        rest = logits[len(wanted.drawing) :]
        scored, prompts = [], []
        for chunk in wanted.scoring:
            row, rest = rest[:1], rest[1:]
            scored.append((chunk.choice, self._label_logprobs(row, chunk.choice.request)))
        for chunk, positions in wanted.prompts:
            rows, rest = rest[: len(positions)], rest[len(positions) :]
            prompts.append((chunk.choice, self._prompt_logprobs(rows, chunk.choice.request, positions)))
        return StepResult(drawn, scored, prompts)

    def _label_logprobs(self, row: Tensor, request: Request) -> list[float] | None:
        if not bool(row.amax().isfinite()):
            return None
        labels = torch.tensor([request.label_token_ids], device=self.config.device)
        logprobs: list[float] = token_logprobs(row, labels)[0].tolist()
        return logprobs

    def _prompt_logprobs(self, rows: Tensor, request: Request, positions: range) -> LogprobsTensors | None:
        if not bool(rows.amax(1).isfinite().all()):
            return None
        following = request.prompt_token_ids[positions.start + 1 : positions.stop + 1]
        logprobs = gather_logprobs(
            rows,
            torch.tensor(following, device=self.config.device),
            request.params.prompt_logprobs or 0,
            self.config.logprobs_mode,
        )
        return LogprobsTensors(*_to_host(*logprobs[:3]))

    def _draw(self, logits: Tensor, wanted: _Step, staged: Sequence[Tensor]) -> Drawn:
        count = len(wanted.drawing)
        state_rows = staged[wanted.state_rows]
        rows = LogitsRows(
            idx_mapping=state_rows,
            expanded_idx_mapping=state_rows,
            local_positions=torch.zeros_like(state_rows),
            positions=staged[wanted.draw_positions],
            input_ids=staged[wanted.last_tokens],
            cu_num_logits=torch.arange(count + 1, dtype=torch.int32, device=self.config.device),
        )
        out = self.sampler(logits[:count], rows)
        self.sampler.commit(state_rows, out.token_ids.unsqueeze(1), (out.token_ids >= 0).to(torch.int32))
        logprobs = () if out.logprobs is None else out.logprobs[:3]
        token_ids, status, *columns = _to_host(out.token_ids, out.status, *logprobs)
        return Drawn(
            [chunk.choice for chunk in wanted.drawing],
            token_ids.tolist(),
            status.tolist(),
            LogprobsTensors(*columns) if columns else None,
        )


def _stage(batch: BatchBuilder, chunks: Sequence[Chunk]) -> _Step:
    """Find the rows whose logits are wanted; `chunks` in the order of the batch."""
    drawing: list[Chunk] = []
    scoring: list[Chunk] = []
    prompts: list[tuple[Chunk, range]] = []
    draw_rows: list[int] = []
    score_rows: list[int] = []
    prompt_rows: list[int] = []
    offset = 0
    for chunk in chunks:
        choice = chunk.choice
        request = choice.request
        if chunk.draws and request.label_token_ids:
            scoring.append(chunk)
            score_rows.append(offset + chunk.num_tokens - 1)
        elif chunk.draws and request.max_tokens:
            drawing.append(chunk)
            draw_rows.append(offset + chunk.num_tokens - 1)
        if choice.reads_prompt_logprobs:
            # The first rows may have been read before a preemption.
            first = max(choice.num_computed, len(request.prompt_logprobs) - 1)
            positions = range(first, min(chunk.end, len(request.prompt_token_ids) - 1))
            if positions:
                prompts.append((chunk, positions))
                prompt_rows.extend(offset + position - choice.num_computed for position in positions)
        offset += chunk.num_tokens
    add = batch.staging.add
    return _Step(
        drawing,
        scoring,
        prompts,
        logits_rows=add(draw_rows + score_rows + prompt_rows),
        state_rows=add([chunk.choice.row for chunk in drawing]),
        draw_positions=add([chunk.end for chunk in drawing]),
        last_tokens=add([chunk.choice.token_ids[-1] for chunk in drawing]),
    )


def _to_host(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the host, after a single wait."""
    if not tensors[0].is_cuda:
        return list(tensors)
    hosts = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
    for host, tensor in zip(hosts, tensors):
        host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return hosts
