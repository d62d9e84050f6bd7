"""How every script of `training/` begins, and how it ends: quietly, or with one line on stderr and an exit code."""

import ctypes
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


USER_MISTAKES = (ValueError, OSError, ImportError)  # ImportError: an optional dependency that the checkpoint asks for
DEBUG = "HF_ATTENTION_DEBUG"
HEAP = 2**33  # bytes of addresses that are given huge pages; what lies beyond has the usual ones


def run(main: Callable[[], object]) -> NoReturn:
    """Calls `main()` and exits the process.

    Exit codes: 0 success, 1 a mistake of the user (`error: ...`, one line, no traceback), 2 wrong usage (argparse's
    own), 130 Ctrl-C, 141 the reader of our output is gone (`| head`; silent). Anything else is a bug of ours and keeps
    its traceback; `HF_ATTENTION_DEBUG=1` shows it for the user's mistakes too.
    """
    keep_freed_memory()
    try:
        main()
        sys.stdout.flush()  # here, where a closed pipe can still be handled
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more as it ends
        sys.exit(141)
    except KeyboardInterrupt:
        _report("interrupted", 130)
    except Exception as error:
        if os.environ.get(DEBUG, "0") not in ("", "0") or not (isinstance(error, USER_MISTAKES) or _is_network(error)):
            raise
        _report(f"error: {one_line(error)}", 1)
    sys.exit(0)


def keep_freed_memory() -> None:
    """Has glibc keep freed memory for the next step, and take it in huge pages, where a CPU does the work.

    A quarter of a step is page faults otherwise, and up to as much again goes into finding small pages.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # malloc.h
    advice = 14  # MADV_HUGEPAGE, as in <asm-generic/mman-common.h>
    libc = ctypes.CDLL(None)
    for parameter, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 2**26)):
        libc.mallopt(parameter, value)
    # Advice is for addresses that the heap has. So it takes them once, and memory only as it is used.
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes, libc.madvise.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.free(libc.malloc(HEAP))  # NULL where the process may not have so many
    for mapping in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if mapping.endswith("[heap]"):
            start, end = (int(address, 16) for address in mapping.split()[0].split("-"))
            libc.madvise(start, end - start, advice)


def into_heap(model: Any) -> Any:
    """`model`, its weights moved from the pages of their file into the heap, whose pages are larger."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def check_output_file(path: Path | None) -> None:
    """Raises ValueError if `path` cannot be written; asked before the long work whose result goes there."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"output is {str(path)!r}, wanted a file in a folder that exists")
    if path.is_file() or not path.exists():  # a device is written to, anything else beside and renamed
        try:
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        except OSError as error:
            raise ValueError(
                f"output is {str(path)!r}, in a folder that can't be written: {error.strerror}"
            ) from error


def one_line(error: BaseException) -> str:
    """The message of `error` on one line; for a file error `path: what is wrong`."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_network(error: BaseException) -> bool:
    """Whether the Hub could not be reached: its client's HTTP library has errors of its own, under changing names."""
    return any(kind.__module__.partition(".")[0].startswith("httpx") for kind in type(error).__mro__)


def _report(line: str, code: int) -> NoReturn:
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)
