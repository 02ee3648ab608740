"""The models that come with the package: `tiny`, its draft `tiny-draft`, and its EAGLE-style head `tiny-eagle`."""

from pathlib import Path

_FOLDER = Path(__file__).parent
EMBEDDED = ("tiny", "tiny-draft")
EMBEDDED_HEADS = ("tiny-eagle",)
"""Not models: they only draft for `tiny`"""


def resolve(name: str) -> str:
    """Where an embedded model or head lies; any other name or path is returned as it is."""
    return str(_FOLDER / name) if name in EMBEDDED + EMBEDDED_HEADS else name
