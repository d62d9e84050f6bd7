"""Text files, a sentence a line: UTF-8, lines that end at "\\n" and nowhere else, as `wc -l` counts them."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


logger = logging.getLogger(__name__)


def read_lines(path: str | Path, replace_bad: bool = False) -> Iterator[str]:
    """The lines of a file, one at a time, without their line end ("\\n" or "\\r\\n") and without a byte order mark.

    U+2028, U+0085, a lone "\\r" and their kind stay inside their line, so line N is line N for every other tool too. A
    last line without "\\n" counts.

    `ValueError`: the file cannot be read, or a line is not UTF-8. With `replace_bad`, what is not becomes U+FFFD, and
    a warning names the first such line.
    """
    warned = False
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} after {error.start} good ones"
                    if not replace_bad:
                        raise ValueError(f"{path}, line {number}: not UTF-8 ({byte})") from error
                    if not warned:
                        logger.warning(
                            "%s, line %d: not UTF-8 (%s), here and further on read as U+FFFD", path, number, byte
                        )
                        warned = True
                    text = line.decode("utf-8", "replace")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Writes each line with "\n" after it, as `replacing` does."""
    with replacing(path) as file:
        for line in lines:
            if "\n" in line:
                raise ValueError(f"{path}: {line!r} is more than one line")
            file.write(line + "\n")


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes as `replacing` does. Raises ValueError if `path` cannot be written."""
    try:
        with replacing(path, binary=True) as file:
            file.write(content)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: str | Path, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write, UTF-8 or `binary`, beside `path` first, then renamed, so that nobody reads half a file.

    A link is followed. What is no regular file, such as a device or a pipe, can't be replaced and is written to.
    """
    path = Path(path).resolve()
    how: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    if path.exists() and not path.is_file():
        with open(path, **how) as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, **how) as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
