"""Fast decoding of a few tokens, for detokenising step by step."""

from functools import cache
from typing import Any


class TokenDecoder:
    """Decodes without cleaning up spaces, so that the text of a prefix is a prefix of the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self.token_text = cache(lambda token_id: self.decode_with_special_tokens([token_id]))
        """The text of one token"""

    def decode(self, token_ids: list[int]) -> str:
        """The text without special tokens."""
        return self._decode(token_ids, skip_special_tokens=True)

    def decode_with_special_tokens(self, token_ids: list[int]) -> str:
        """The text of all tokens."""
        return self._decode(token_ids, skip_special_tokens=False)

    def _decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        text: str
        if self._fast is not None:
            text = self._fast.decode(token_ids, skip_special_tokens=skip_special_tokens)
        else:
            text = self._tokenizer.decode(
                token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        return text
