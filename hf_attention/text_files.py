"""Text files, a sentence a line: UTF-8, lines that end at "\\n" and nowhere else, as `wc -l` counts them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, one at a time, without their line end ("\\n" or "\\r\\n") and without a byte order mark.

    U+2028, U+0085, a lone "\\r" and their kind stay inside their line, so line N is line N for every other tool too. A
    last line without "\\n" counts. `ValueError`: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = _decode(line.removesuffix(b"\n").removesuffix(b"\r"), path, number)
                yield text.removeprefix("\ufeff") if number == 1 else text
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error


def _decode(line: bytes, path: str | Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} after {error.start} good ones)"
        ) from error


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Writes each line with "\\n" after it; beside `path` first and renamed, so no reader sees half a file."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as file:
            for line in lines:
                if "\n" in line:
                    raise ValueError(f"{path}: {line!r} is more than one line")
                file.write(line + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
