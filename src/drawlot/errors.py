"""Every failure that drawlot raises on purpose.

DrawlotError
├── ParameterError      a request asks for something invalid; names the field, the rule and the value (a ValueError)
├── InputError          a tensor or a call does not fit: shape, dtype, device, order of calls (a ValueError)
├── BackendError        a backend that was asked for cannot run here; gives the reason (a RuntimeError)
└── ModelError          a model cannot be loaded or is not supported; gives the reason (a RuntimeError)

Requests are checked once, at admission. Nothing below admission raises for what a request contains: a row that turns
out bad while running is flagged in its `RowStatus`.
"""


class DrawlotError(Exception):
    """The root: catch it to catch everything that drawlot raises on purpose."""


class ParameterError(DrawlotError, ValueError):
    """A parameter is outside its range, or two parameters exclude each other.

    The message reads `field: rule; got value`.
    """

    def __init__(self, field: str, rule: str, value: object) -> None:
        try:
            shown = repr(value)
        except ValueError:  # Python refuses to write out integers of thousands of digits
            shown = "a number too long to show"
        super().__init__(f"{field}: {rule}; got {shown if len(shown) <= 64 else shown[:61] + '...'}")
        self.field = field
        self.rule = rule
        self.value = value

    def __reduce__(self) -> tuple[type, tuple[str, str, object]]:
        return type(self), (self.field, self.rule, self.value)


class InputError(DrawlotError, ValueError):
    """A tensor has the wrong shape, dtype or device, or a call comes out of order."""


class BackendError(DrawlotError, RuntimeError):
    """The backend that was asked for cannot run on this machine or with these options."""


class ModelError(DrawlotError, RuntimeError):
    """A model cannot be loaded, or drawlot cannot promise to run it correctly."""
