"""Packs a cache of compiled kernels for a GPU's machine: `python -m benchmarks.pack_cache DIR FILE.tar.xz`.

DIR is what `compile_ahead` filled. Of each kernel its machine code and what is said of it, without intermediate forms,
and with zeros for the PTX text that lies in the code for debuggers: so 579 kernels are 28 MB. Unpack it where DIR was:
a cache holds its own paths. `--names`: those that `compile_ahead --names` noted alone.
"""

import argparse
import io
import struct
import tarfile
from pathlib import Path

_TEXT = b".nv_debug_ptx_txt"
_SECTIONS, _SECTION_NUMBERS, _PLACE_IN_FILE = 40, 58, 24
"""Offsets in a 64-bit ELF: of where the section headers are; of their size, number, and which one has names; and in a
header of a section's offset and size"""


def without_ptx_text(code: bytes) -> bytes:
    """Machine code as long as before, with zeros for the PTX text in it."""
    (headers,) = struct.unpack_from("<Q", code, _SECTIONS)
    size, number, names = struct.unpack_from("<HHH", code, _SECTION_NUMBERS)
    (first_name,) = struct.unpack_from("<Q", code, headers + size * names + _PLACE_IN_FILE)
    result = bytearray(code)
    for header in range(headers, headers + size * number, size):
        (name,) = struct.unpack_from("<I", code, header)
        if code[first_name + name :].startswith(_TEXT + b"\0"):
            start, length = struct.unpack_from("<QQ", code, header + _PLACE_IN_FILE)
            result[start : start + length] = bytes(length)
    return bytes(result)


def pack(cache: Path, file: Path, names: frozenset[str] | None = None) -> int:
    """Writes the archive, in which kernels of a name lie side by side, since they are alike; returns their number.

    names: folders of the cache; None: all.
    """

    def found(pattern: str) -> list[Path]:
        return [path for path in cache.glob(pattern) if names is None or path.parent.name in names]

    kernels = sorted(found("*/*.cubin"), key=lambda path: (path.name, path.stat().st_size, path))
    with tarfile.open(file, "w:xz", preset=2) as archive:
        for path in kernels:
            code = without_ptx_text(path.read_bytes())
            about = tarfile.TarInfo(str(path.relative_to(cache)))
            about.size = len(code)
            archive.addfile(about, io.BytesIO(code))
        for path in sorted(found("*/*.json")):
            archive.add(path, str(path.relative_to(cache)))
    return len(kernels)


def main(arguments: list[str] | None = None) -> None:
    """Packs, and says how much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack_cache", description=__doc__)
    parser.add_argument("cache", type=Path, metavar="DIR")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--names", type=Path, metavar="NAMES", help="a file of folders of DIR, a line each")
    given = parser.parse_args(arguments)
    if not any(given.cache.glob("*/*.cubin")):
        parser.error(f"DIR: needs a cache with compiled kernels; got {given.cache}")
    names = None
    if given.names is not None:
        if not given.names.is_file():
            parser.error(f"--names: needs a file; got {given.names}")
        names = frozenset(given.names.read_text().split())
    number = pack(given.cache, given.file, names)
    print(f"{given.file}: {number} kernels, {given.file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
