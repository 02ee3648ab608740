"""The EAGLE-style head: one decoder layer that guesses the target's next hidden state.

At position t it reads the target's hidden state there and the embedding of token t + 1, and gives the state that it
expects at t + 1; the target's `lm_head` makes that the distribution of token t + 2. Drafting goes on from the given
state in the place of the target's. A hidden state is always what `lm_head` reads: after the final norm, the target's or
the head's own. Embeddings and `lm_head` are the target's own and not stored.

Sources: EAGLE, arXiv 2401.15077, section 3 (states and shifted embeddings through a projection and a decoder layer);
EAGLE-3, arXiv 2503.01840, section 3 (training on its own chained outputs).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drawlot.errors import ModelError

FORMAT, FORMAT_VERSION = "drawlot-eagle-head", "1"
WEIGHTS = "model.safetensors"
"""The file of a head's folder, and of the target's that it is bound to"""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query [B, H, T, head_dim], key [B, G, T, head_dim], value [B, G, T, head_dim]) -> [B, T, H, head_dim]: attention of
T new positions to what its owner has kept of earlier ones and to themselves, with H query and G KV heads"""


@dataclass(frozen=True)
class EagleHeadConfig:
    """The shape of a head; everything but the sizes that are free is the target's."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of whole sequences: to every position up to one's own."""
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


class _RMSNorm(nn.Module):
    """RMSNorm whose weight may have another dtype than its input, as under autocast; `nn.RMSNorm` warns of that."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, eps=self.eps) * self.weight


class EagleHead(nn.Module):
    """The network. It keeps no cache: who runs it passes the attention, over a dense cache, a paged one or none."""

    rotation: Tensor

    def __init__(self, config: EagleHeadConfig) -> None:
        super().__init__()
        self.config = config
        width, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.hidden_norm = _RMSNorm(width, eps)
        self.embedding_norm = _RMSNorm(width, eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.attention_norm = _RMSNorm(width, eps)
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)
        self.mlp_norm = _RMSNorm(width, eps)
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.output_norm = _RMSNorm(width, eps)
        # A table of cosines and sines, which casting to bf16 harms less than it would the frequencies.
        self.register_buffer("rotation", _rotation(config), persistent=False)

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor, attend: Attend = causal) -> Tensor:
        """Guess the hidden state that follows each position.

        Args:
            hidden: [B, T, D], the state at each position: the target's, or what this gave for it.
            embeddings: [B, T, D], the embedding of the token after each position.
            positions: int64 [B, T], each below `max_position_embeddings`.
            attend: Called once. A flat batch of ragged requests is B = 1.

        Returns:
            [B, T, D], for `lm_head` and as `hidden` of the next position.
        """
        config = self.config
        x = self.input_proj(torch.cat([self.hidden_norm(hidden), self.embedding_norm(embeddings)], -1))

        normed = self.attention_norm(x)
        cos, sin = self.rotation[positions].unsqueeze(1).chunk(2, -1)
        query, key, value = (
            projection(normed).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = attend(_rotate(query, cos, sin), _rotate(key, cos, sin), value)
        x = x + self.o_proj(attended.flatten(-2))

        normed = self.mlp_norm(x)
        x = x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))
        out: Tensor = self.output_norm(x)
        return out


def _rotation(config: EagleHeadConfig) -> Tensor:
    """[max_position_embeddings, head_dim]: the cosines of every position's angles, then their sines."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
    angles = torch.outer(positions, config.rope_theta**-half)
    return torch.cat([angles.cos(), angles.sin()], -1).float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [B, H, T, head_dim], first half with second half, as Llama pairs them."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def save_head(head: EagleHead, folder: str | Path, target: str | Path) -> None:
    """Write a head in bf16 to `folder`, bound to the target whose folder is given; the layout: docs/eagle_head.md.

    Raises:
        ModelError: The target's folder has no weights in one file.
    """
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in head.state_dict().items()}
    metadata = {name: str(value) for name, value in asdict(head.config).items()}
    metadata |= {"format": FORMAT, "format_version": FORMAT_VERSION, "target_sha256": _sha256(Path(target))}
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(tensors, Path(folder, WEIGHTS), metadata)


def load_head(folder: str | Path, target: str | Path) -> EagleHead:
    """The head in `folder`, in float32 on the CPU and in evaluation mode.

    Args:
        folder: Holds the head's file.
        target: The folder of the model that it is to draft for.

    Raises:
        ModelError: There is no such head, its layout is not the documented one, or it belongs to another target.
    """
    file = Path(folder, WEIGHTS)
    if not file.is_file():
        raise ModelError(f"{folder}: no EAGLE head: {WEIGHTS} is missing")
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dictionary)
    except SafetensorError as error:
        raise ModelError(f"{file}: not a safetensors file: {error}") from error
    head = EagleHead(_config(file, metadata))
    _check_tensors(file, head.state_dict(), tensors)
    expected, found = metadata.get("target_sha256"), _sha256(Path(target))
    if expected != found:
        raise ModelError(
            f"{file}: this head was trained for another target than {target}: "
            f"its weights' SHA-256 must be {expected}; got {found}"
        )
    head.load_state_dict(tensors)
    return head.eval().requires_grad_(False)


def _config(file: Path, metadata: Mapping[str, str]) -> EagleHeadConfig:
    found = metadata.get("format"), metadata.get("format_version")
    if found != (FORMAT, FORMAT_VERSION):
        raise ModelError(f"{file}: format and version must be {FORMAT} {FORMAT_VERSION}; got {found[0]} {found[1]}")
    values: dict[str, Any] = {}
    for field in fields(EagleHeadConfig):
        try:
            value = (float if field.type is float else int)(metadata[field.name])
        except (KeyError, ValueError):
            value = 0
        if not 0 < value < float("inf"):
            raise ModelError(f"{file}: {field.name} must be a positive number; got {metadata.get(field.name)}")
        values[field.name] = value
    return EagleHeadConfig(**values)


def _check_tensors(file: Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    if expected.keys() != found.keys():
        differing = ", ".join(sorted(expected.keys() ^ found.keys()))
        raise ModelError(f"{file}: tensors are missing or unknown: {differing}")
    for name, tensor in expected.items():
        wanted = torch.bfloat16, tuple(tensor.shape)
        got = found[name].dtype, tuple(found[name].shape)
        if got != wanted:
            raise ModelError(f"{file}: {name} must be {wanted[0]} {wanted[1]}; got {got[0]} {got[1]}")


def _sha256(target: Path) -> str:
    file = target / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{target}: an EAGLE head needs the target's folder with its weights in one {WEIGHTS}")
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
