"""The models that come with the package: `tiny` and its draft, `tiny-draft`."""

from pathlib import Path

_FOLDER = Path(__file__).parent
EMBEDDED = ("tiny", "tiny-draft")


def resolve(name: str) -> str:
    """Where an embedded model lies; any other name or path is returned as it is."""
    return str(_FOLDER / name) if name in EMBEDDED else name
