"""`Engine`: requests in, outputs out, one step at a time; for one thread."""

import time
from collections.abc import Sequence

from drawlot.engine.adapters.loading import load
from drawlot.engine.admission import Admission
from drawlot.engine.args import EngineArgs
from drawlot.engine.config import resolve_config
from drawlot.engine.drafters import build, load_drafter
from drawlot.engine.drawing import Drawn
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.logprobs import TokenText, at_position, at_positions
from drawlot.engine.metrics import SpeculativeMetrics
from drawlot.engine.outputs import RequestOutput
from drawlot.engine.paged_model import PagedModel
from drawlot.engine.request import Choice, Request
from drawlot.engine.runner import InFlight, Runner
from drawlot.engine.scheduler import Schedule, Scheduler
from drawlot.engine.stats import EngineStats
from drawlot.engine.tokenizer import TokenDecoder
from drawlot.errors import ParameterError
from drawlot.kernels.registry import name_that_drafts
from drawlot.outputs import RowStatus
from drawlot.params import SamplingParams
from drawlot.sampling import Sampler


class Engine:
    """Continuous batching on a Hugging Face model."""

    def __init__(self, args: EngineArgs) -> None:
        """Load the model and allocate the cache.

        Raises:
            ModelError: The model cannot be loaded or is not supported.
            ParameterError: An argument does not fit the model or the machine.
            BackendError: The sampler backend that was asked for cannot run here.
        """
        loaded = load(args)
        model, self.tokenizer, self.limits = loaded
        drafter = load_drafter(args, loaded)
        self.config = resolve_config(args, self.limits, model.dtype, model.device, drafter.layers if drafter else ())
        self.stats = EngineStats()
        config = self.config
        self._decoder = TokenDecoder(self.tokenizer)
        self._admission = Admission(config, self.limits, self.tokenizer, self._decoder, args.seed)
        self._cache = KVCache(
            config.num_kv_blocks,
            config.block_size,
            config.max_num_seqs,
            config.max_model_len,
            config.enable_prefix_caching,
        )
        self._scheduler = Scheduler(config, self._cache)
        sampler = Sampler(
            config.max_num_seqs,
            self.limits.vocab_size,
            device=config.device,
            logprobs_mode=config.logprobs_mode,
            use_fp64_gumbel=args.use_fp64_gumbel,
            backend=name_that_drafts(args.sampler_backend, config.device) if drafter else args.sampler_backend,
        )
        target = PagedModel(model, self.limits, config, self._cache)
        self.drafting = drafter and build(drafter, target, self._cache, sampler)
        """None without a `speculative_config`"""
        self.speculative_metrics = SpeculativeMetrics()
        """What became of all drafts; `metrics.counters` makes counters of it"""
        self._runner = Runner(target, config, self._cache, sampler, self.drafting, self.stats)
        self._requests: dict[str, Request] = {}
        self._ahead: InFlight | None = None

    @property
    def vocab_size(self) -> int:
        """Token ids lie in [0, vocab_size): the width of the model's logits."""
        return self.limits.vocab_size

    def add_request(
        self, request_id: str, prompt: str | Sequence[int], params: SamplingParams, use_speculation: bool = True
    ) -> None:
        """Queue a request.

        Args:
            request_id: Not in use by an unfinished request.
            prompt: Text, tokenised with the special tokens that the tokenizer adds, or token ids.
            params: How to draw. A request without a seed gets 64 bits of its own; generation ends at the model's
                context (`finish_reason` "length") if `max_tokens` would go beyond.
            use_speculation: Draft for this request, if the engine drafts at all.

        Raises:
            ParameterError: The prompt or a parameter is invalid; nothing was queued.
        """
        self._check_id(request_id)
        self._queue(self._admission.request(request_id, prompt, params, use_speculation))

    def add_scoring_request(
        self, request_id: str, prompt_token_ids: Sequence[int], label_token_ids: Sequence[int]
    ) -> None:
        """Queue a request that draws nothing: its output carries `label_logprobs`.

        Args:
            request_id: Not in use by an unfinished request.
            prompt_token_ids: Up to max_model_len token ids.
            label_token_ids: 1..128 token ids.

        Raises:
            ParameterError: The prompt or a label is invalid; nothing was queued.
        """
        self._check_id(request_id)
        self._queue(self._admission.scoring_request(request_id, prompt_token_ids, label_token_ids))

    def abort(self, request_id: str) -> None:
        """Forget a request and free what it holds; `step` says nothing more of it.

        An unknown id is no error: the request may just have finished.
        """
        request = self._requests.pop(request_id, None)
        if request is not None:
            for choice in request.choices:
                if choice.finish_reason is None:
                    choice.finish("abort")
                    self._release(choice)

    def has_unfinished_requests(self) -> bool:
        """Some request needs more steps."""
        return bool(self._requests)

    def step(self) -> list[RequestOutput]:
        """Compute one step and return the requests that changed, in order of arrival.

        Finished requests are returned once, with `finished`, and forgotten. On a GPU the next step is already under way
        when this returns, where what it computes does not depend on what was drawn.
        """
        if not self._requests:
            return []
        begin, before = time.perf_counter(), self.stats.parts()
        step = self._ahead or self._launch(self._scheduler.schedule())
        chunks = self._scheduler.run_ahead() if step.only_decodes else []
        self._ahead = self._launch(Schedule(chunks, [], [])) if chunks else None
        outputs = self._take(step)
        draft, verify, *others = (after - earlier for after, earlier in zip(self.stats.parts(), before))
        rest = time.perf_counter() - begin - draft - verify - sum(others)
        self.stats.bookkeeping_seconds += rest
        if self.config.speculative is not None:
            self._count_seconds(step, {"draft": draft, "verify": verify, "other": rest + sum(others)})
        return outputs

    def _launch(self, schedule: Schedule) -> InFlight:
        stats = self.stats
        for row in schedule.preempted_rows:
            self._runner.remove(row)
        for choice in schedule.admitted:
            self._runner.add(choice)
            stats.cached_tokens += choice.num_computed
        step = self._runner.launch(schedule.chunks)
        for chunk in schedule.chunks:
            chunk.choice.num_computed += chunk.num_tokens
            stats.computed_tokens += chunk.num_tokens
        stats.steps += 1
        stats.preemptions += len(schedule.preempted_rows)
        return step

    def _take(self, step: InFlight) -> list[RequestOutput]:
        """Bring a step's results into the requests and give out those that changed."""
        result = step.wait()
        # The others ended while the step was under way: what it drew for them is nobody's.
        choices = [chunk.choice for chunk in step.chunks if chunk.choice.finish_reason is None]
        for choice in choices:
            self._cache.remember(choice)
        for choice, columns in result.prompts:
            if columns is None:
                choice.finish("error", _reason(RowStatus.NONFINITE))
            else:
                choice.request.prompt_logprobs.extend(at_positions(columns, self._token_text(choice)))
        for choice, logprobs in result.scored:
            if logprobs is None:
                choice.finish("error", _reason(RowStatus.NONFINITE))
            else:
                choice.request.label_logprobs = logprobs
        self._take_drawn(result.drawn)
        drawn = {each.choice for each in result.drawn.choices}
        changed: dict[str, Request] = {}
        for choice in choices:
            request = choice.request
            if choice.finish_reason is None and not request.max_tokens and choice.num_computed == len(choice.token_ids):
                choice.finish("length")
            if choice.finish_reason is not None:
                self._release(choice, discard=choice.finish_reason == "error")
            elif choice not in drawn:
                continue
            changed[request.request_id] = request
        for request in changed.values():
            if request.finished:
                del self._requests[request.request_id]
        return [request.output() for request in changed.values()]

    def _take_drawn(self, drawn: Drawn) -> None:
        columns = drawn.logprobs and [tensor.tolist() for tensor in drawn.logprobs[:3]]
        for each in drawn.choices:
            choice, params = each.choice, each.choice.request.params
            if choice.finish_reason is not None:
                continue
            before = choice.num_output
            for row, token_id in enumerate(each.token_ids, each.first_row):
                if columns and params.num_logprobs is not None:
                    ids, values, ranks = columns
                    ranked = params.logprob_token_ids is None
                    entry = at_position(ids[row], values[row], ranks[row], self._token_text(choice), ranked)
                    choice.logprobs.append(entry)
                    if self.config.logprobs_mode.endswith("logprobs"):
                        choice.cumulative_logprob = (choice.cumulative_logprob or 0.0) + values[row][0]
                self._take_token(choice, token_id)
                self.stats.generated_tokens += 1
                if choice.finish_reason is not None:
                    break
            else:
                # Drafts count as computed once they are accepted; what others left in the cache is written over.
                choice.num_computed += each.num_accepted
                if each.status:
                    choice.finish("error", _reason(each.status))
            if each.num_drafts:
                for metrics in (self.speculative_metrics, choice.request.metrics.speculative_decoding):
                    assert metrics is not None
                    metrics.add_step(each.num_drafts, each.num_accepted, choice.num_output - before)

    def _count_seconds(self, step: InFlight, seconds: dict[str, float]) -> None:
        self.speculative_metrics.add_seconds(seconds)
        for request in {chunk.choice.request for chunk in step.chunks if chunk.num_drafts}:
            if request.metrics.speculative_decoding is not None:
                request.metrics.speculative_decoding.add_seconds(seconds)

    def _take_token(self, choice: Choice, token_id: int) -> None:
        request = choice.request
        choice.token_ids.append(token_id)
        if token_id in request.stop_token_ids:
            # Its text is left out.
            choice.finish("stop", None if token_id in request.eos_token_ids else token_id)
            return
        if choice.detokenizer is not None:
            begin = time.perf_counter()
            stop = choice.detokenizer.append(token_id, may_stop=choice.num_output >= request.params.min_tokens)
            self.stats.detokenize_seconds += time.perf_counter() - begin
            if stop is not None:
                choice.finish("stop", stop)
                return
        if choice.num_output >= request.max_tokens:
            choice.finish("length")

    def _token_text(self, choice: Choice) -> TokenText | None:
        return self._decoder.token_text if choice.request.params.detokenize else None

    def _check_id(self, request_id: str) -> None:
        if request_id in self._requests:
            raise ParameterError("request_id", "must not be in use", request_id)

    def _queue(self, request: Request) -> None:
        self._requests[request.request_id] = request
        for choice in request.choices:
            self._scheduler.add(choice)

    def _release(self, choice: Choice, discard: bool = False) -> None:
        row = choice.row
        freed = self._scheduler.remove(choice, discard)
        if row >= 0:
            self._runner.remove(row)
        if discard and freed:
            self._runner.clear(freed)


def _reason(status: int) -> str:
    """What a bad row's choice has as `stop_reason`: nonfinite, empty_support."""
    return (RowStatus(status).name or str(status)).lower()
