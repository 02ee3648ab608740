"""Steps on the device: a forward, logits only where they are wanted, then the sampler.

On a GPU a step that only decodes is a `Decoder`'s; every other step is a flat batch in plain torch.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from drawlot.engine.attention import allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.engine.config import EngineConfig, ModelLimits
from drawlot.engine.drawing import Drawn, DrawnCopy, HostCopy, draw, one_row_each
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.request import Choice, Request
from drawlot.engine.scheduler import Chunk
from drawlot.engine.stats import EngineStats
from drawlot.errors import ModelError
from drawlot.outputs import LogprobsTensors
from drawlot.sampling import Sampler
from drawlot.sampling.logprobs import gather_logprobs, token_logprobs

if TYPE_CHECKING:
    from drawlot.engine.decode import Decoder


class StepResult(NamedTuple):
    """What a step has computed, on the host."""

    drawn: Drawn
    scored: list[tuple[Choice, list[float] | None]]
    """Logprobs of the labels of scoring requests; None where the row has no finite maximum"""
    prompts: list[tuple[Choice, LogprobsTensors | None]]
    """The next rows of prompt logprobs; None where one of them has no finite maximum"""


class InFlight(NamedTuple):
    """A step that was given to the device."""

    chunks: Sequence[Chunk]
    wait: Callable[[], StepResult]
    only_decodes: bool
    """Its tokens can be fed to the next step before the host knows them"""


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
        self.decoder = self._decoder() if config.device.type == "cuda" and not config.enforce_eager else None

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
    def launch(self, chunks: Sequence[Chunk]) -> InFlight:
        """Compute the chunks and draw a token for each that ends with its choice's last token."""
        if self.decoder is not None and all(chunk.only_decodes for chunk in chunks):
            begin = time.perf_counter()
            copy = self.decoder.launch([chunk.choice for chunk in chunks], self.cache.tables)
            self.stats.forward_seconds += time.perf_counter() - begin
            return InFlight(chunks, lambda: self._wait(copy), only_decodes=True)
        result = self._flat_step(chunks)
        return InFlight(chunks, lambda: result, only_decodes=False)

    def _wait(self, copy: DrawnCopy) -> StepResult:
        begin = time.perf_counter()
        drawn = copy.wait()
        self.stats.sampling_seconds += time.perf_counter() - begin
        return StepResult(drawn, [], [])

    @torch.inference_mode()
    def _decoder(self) -> "Decoder":
        # Triton is on every machine where torch has a GPU, but not on all others.
        from drawlot.engine.decode import Decoder

        try:
            return Decoder(self.model, self.config, self._pools, self.sampler, capture=True)
        # A model may do anything in its forward.
        except Exception as error:
            what = f"model type {self.model.config.model_type!r} cannot decode by CUDA graph"
            raise ModelError(f"{what} (enforce_eager does without): {error}") from error

    def _flat_step(self, chunks: Sequence[Chunk]) -> StepResult:
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
        return LogprobsTensors(*HostCopy(*logprobs[:3]).wait())

    def _draw(self, logits: Tensor, wanted: _Step, staged: Sequence[Tensor]) -> Drawn:
        rows = one_row_each(staged[wanted.state_rows], staged[wanted.draw_positions], staged[wanted.last_tokens])
        out = draw(self.sampler, logits[: len(wanted.drawing)], rows)
        return DrawnCopy([chunk.choice for chunk in wanted.drawing], out).wait()


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
