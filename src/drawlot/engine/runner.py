"""Steps on the device: drafts, a forward, logits only where they are wanted, then the sampler or the verifier.

On a GPU a step that only decodes is a `Decoder`'s; every other step is a flat batch in plain torch.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from drawlot.engine.batch import Span
from drawlot.engine.config import EngineConfig
from drawlot.engine.drafting import Drafting
from drawlot.engine.drawing import Drawn, DrawnCopy, HostCopy, draw, one_row_each
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.paged_model import PagedModel
from drawlot.engine.request import Choice, Request
from drawlot.engine.scheduler import Chunk
from drawlot.engine.stats import EngineStats
from drawlot.engine.wanted_rows import DraftedChunk, WantedRows, stage
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


class Runner:
    """Owns the target model, the sampler and what drafts."""

    def __init__(
        self,
        target: PagedModel,
        config: EngineConfig,
        cache: KVCache,
        sampler: Sampler,
        drafting: Drafting | None,
        stats: EngineStats,
    ) -> None:
        self.target = target
        self.model = target.model
        self.config = config
        self.cache = cache
        self.sampler = sampler
        self.drafting = drafting
        self.stats = stats
        # Steps with drafts have as many new tokens a choice as were drafted, which no graph has.
        by_graph = config.device.type == "cuda" and not config.enforce_eager and drafting is None
        self.decoder = self._decoder() if by_graph else None

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
        if self.drafting is not None:
            self.drafting.speculator.add_request(choice.row, choice.num_computed)

    def remove(self, row: int) -> None:
        """Free a row."""
        self.sampler.remove_request(row)

    @torch.inference_mode()
    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that hold NaN, which no mask would hide from their next owner."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.config.device)
        self.target.clear(index)
        if self.drafting is not None:
            self.drafting.speculator.clear(index)

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
            return Decoder(self.model, self.config, self.target.pools, self.sampler, capture=True)
        # A model may do anything in its forward.
        except Exception as error:
            what = f"model type {self.model.config.model_type!r} cannot decode by CUDA graph"
            raise ModelError(f"{what} (enforce_eager does without): {error}") from error

    def _flat_step(self, chunks: Sequence[Chunk]) -> StepResult:
        begin = time.perf_counter()
        drafting = self.drafting
        drafted = [DraftedChunk(chunk) for chunk in chunks] if drafting is None else drafting.propose(chunks)
        begin = self._passed("draft_seconds", begin)
        batch = self.target.batch([_span(each) for each in drafted])
        in_order = {each.chunk.choice.row: each for each in drafted}
        wanted = stage(batch.staging, [in_order[span.row] for span in batch.spans])
        staged = batch.staging.move(self.config.device)
        begin = self._passed("bookkeeping_seconds", begin)
        logits = self.target.forward(batch, staged, staged[wanted.logits_rows])
        begin = self._passed("forward_seconds", begin)
        if drafting is not None and self.target.hidden_states is not None:
            drafting.observe([in_order[span.row] for span in batch.spans], self.target.hidden_states)
            begin = self._passed("draft_seconds", begin)
        result = self._read(logits, wanted, staged)
        self._passed("sampling_seconds", begin)
        return result

    def _passed(self, part: str, begin: float) -> float:
        """Book the time since `begin` and return the time."""
        now = time.perf_counter()
        setattr(self.stats, part, getattr(self.stats, part) + now - begin)
        return now

    def _read(self, logits: Tensor, wanted: WantedRows, staged: Sequence[Tensor]) -> StepResult:
        drawn = self._draw(logits, wanted, staged) if wanted.drawing else Drawn()
        rest = logits[wanted.num_drawing_rows :]
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

    def _draw(self, logits: Tensor, wanted: WantedRows, staged: Sequence[Tensor]) -> Drawn:
        logits = logits[: wanted.num_drawing_rows]
        if self.drafting is not None and wanted.num_drawing_rows > len(wanted.drawing):
            return self.drafting.verify(logits, wanted, staged)
        rows = one_row_each(staged[wanted.state_rows], staged[wanted.positions], staged[wanted.input_ids])
        out = draw(self.sampler, logits, rows)
        return DrawnCopy([each.chunk.choice for each in wanted.drawing], out).wait()


def _span(drafted: DraftedChunk) -> Span:
    """The new tokens of a choice, then its drafts."""
    choice, chunk = drafted.chunk.choice, drafted.chunk
    return Span(
        choice.row, choice.num_computed, [*choice.token_ids[choice.num_computed : chunk.end], *drafted.draft_ids]
    )
