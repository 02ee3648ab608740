"""Tokens to text as they come: never half a character, never what may become a stop string."""

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]

_REPLACEMENT = "\ufffd"
_PROMPT_CONTEXT = 5
_CONTEXT = 8
_LONGEST_CONTEXT = 64


class IncrementalDecoder:
    """Decodes a window of the last tokens with each new one and gives out what has become certain.

    The window begins with tokens given out before, as decoders treat the beginning of a text differently.
    """

    def __init__(self, decode: Decode, prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(prompt_token_ids[-_PROMPT_CONTEXT:])
        self._shown = len(decode(self._window).rstrip(_REPLACEMENT))
        self._context = 0
        self._stalled = 0

    def append(self, token_id: int) -> str:
        """The text that this token makes certain, often empty in the middle of a character."""
        self._window.append(token_id)
        text = self._decode(self._window)
        certain = text.rstrip(_REPLACEMENT)
        unfinished = len(certain) < len(text)
        self._stalled = self._stalled + 1 if unfinished and len(certain) <= self._shown else 0
        if self._stalled > 3:
            # A character has four bytes at most: these will never be one.
            certain, unfinished, self._stalled = text, False, 0
        new = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        since = len(self._window) - self._context
        if since >= _CONTEXT and (not unfinished or since >= _LONGEST_CONTEXT):
            self._window = self._window[self._context :]
            self._context = len(self._window)
            text = self._decode(self._window)
            self._shown = len(text.rstrip(_REPLACEMENT) if unfinished else text)
        return new

    def flush(self) -> str:
        """What is left, half a character as U+FFFD."""
        rest = self._decode(self._window)[self._shown :]
        self._shown += len(rest)
        return rest


class StopMatcher:
    """How much of a stop string the end of the text matches (Knuth, Morris and Pratt): constant time a character."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0]
        for char in stop[1:]:
            self._fallback.append(self._next(self._fallback[-1], char))

    def feed(self, char: str) -> bool:
        """Take the next character; True where it completes the stop string."""
        self.matched = self._next(self.matched, char)
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True

    def _next(self, matched: int, char: str) -> int:
        while matched and self.stop[matched] != char:
            matched = self._fallback[matched - 1]
        return matched + (self.stop[matched] == char)


class Detokenizer:
    """The text of one choice."""

    def __init__(self, decode: Decode, prompt_token_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._decoder = IncrementalDecoder(decode, prompt_token_ids)
        self._matchers = [StopMatcher(text) for text in stop]
        self._finished = False
        self.text = ""

    @property
    def visible_text(self) -> str:
        """The text without an end that may be the beginning of a stop string."""
        if self._finished or not self._matchers:
            return self.text
        return self.text[: len(self.text) - max(matcher.matched for matcher in self._matchers)]

    def append(self, token_id: int, may_stop: bool) -> str | None:
        """Add a token.

        Args:
            token_id: The next token.
            may_stop: A stop string that this token completes ends the text, which is then cut before it.

        Returns:
            The stop string completed first, of several the longest; None if the text goes on.
        """
        new = self._decoder.append(token_id)
        if not self._matchers:
            self.text += new
            return None
        for i, char in enumerate(new):
            completed = [matcher.stop for matcher in self._matchers if matcher.feed(char)]
            if completed and may_stop:
                stop = max(completed, key=len)
                self.text = (self.text + new[: i + 1])[: -len(stop)]
                self._finished = True
                return stop
        self.text += new
        return None

    def finish(self) -> None:
        """No token follows: nothing is held back any more."""
        if not self._finished:
            self.text += self._decoder.flush()
            self._finished = True
