"""What `--json` writes about a request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drawlot.engine.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput


def request_record(request: "RequestOutput") -> dict[str, Any]:
    """A finished request; `prompt_logprobs` only where they were asked for."""
    record: dict[str, Any] = {"prompt": request.prompt, "prompt_token_ids": request.prompt_token_ids}
    if request.prompt_logprobs is not None:
        record["prompt_logprobs"] = _logprobs(request.prompt_logprobs)
    return record | {"outputs": [_completion(completion) for completion in request.outputs]}


def _completion(completion: "CompletionOutput") -> dict[str, Any]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "logprobs": None if completion.logprobs is None else _logprobs(completion.logprobs),
    }


def _logprobs(positions: "Sequence[LogprobsAtPosition | None]") -> list[list[dict[str, Any]] | None]:
    """For each position a list of tokens, the drawn one first; the first token of a prompt has none."""
    return [
        position
        if position is None
        else [{"token_id": token_id, **entry._asdict()} for token_id, entry in position.items()]
        for position in positions
    ]
