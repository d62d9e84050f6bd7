"""hf_attention.cli: what a shell sees of a script that fails."""

import os
import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hf_attention.cli import check_output_file


REPOSITORY = Path(__file__).parents[1]


def shell_sees(body: str, **environment: str) -> subprocess.CompletedProcess:
    # A shell that starts the suite in the background has it ignore Ctrl-C, and so would what the suite starts.
    begin = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = f"{begin}from hf_attention.cli import run\ndef main():\n    {body}\nrun(main)"
    return subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("pass", 0, ""),
        (
            "raise ValueError('num_heads is 3:\\n  wanted a divisor of 8')",
            1,
            "error: num_heads is 3: wanted a divisor of 8\n",
        ),
        ("open('no/such')", 1, "error: no/such: No such file or directory\n"),
        ("raise OSError('two\\nlines')", 1, "error: two lines\n"),
        ("raise ValueError", 1, "error: ValueError\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted\n"),
        ("sys.exit(2)", 2, ""),
    ],
)
def test_exit_code_and_one_line(body, code, stderr):
    result = shell_sees(body, HF_ATTENTION_DEBUG="")
    assert (result.returncode, result.stderr) == (code, stderr)


def test_a_bug_keeps_its_traceback():
    result = shell_sees("{}['missing']")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "KeyError" in result.stderr


def test_debug_shows_the_traceback_of_a_user_mistake():
    result = shell_sees("raise ValueError('seen')", HF_ATTENTION_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "ValueError: seen" in result.stderr


@pytest.mark.parametrize("lines", [1, 100_000])  # the short output breaks only at the last flush
def test_a_closed_pipe_is_silent(lines):
    script = f"from hf_attention.cli import run\nrun(lambda: [print('line') for _ in range({lines})])"
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, b"")


def test_an_output_is_tried_before_the_work(tmp_path):
    (tmp_path / "there.txt").write_text("kept")
    for path in (None, tmp_path / "there.txt", tmp_path / "new.txt", Path("new.txt"), Path(os.devnull)):
        check_output_file(path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.txt"]
    assert (tmp_path / "there.txt").read_text() == "kept"
    for path in (tmp_path, tmp_path / "missing" / "new.txt", tmp_path / "there.txt" / "new.txt"):
        with pytest.raises(ValueError, match="wanted a file in a folder that exists"):
            check_output_file(path)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder at hand that refuses root too")
def test_a_folder_that_cannot_be_written_is_named():
    with pytest.raises(ValueError, match="'/proc/self/new.txt', in a folder that can't be written"):
        check_output_file(Path("/proc/self/new.txt"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is told so where it is glibc's")
def test_memory_is_kept_and_comes_in_huge_pages():
    """The kernel's own account: the advice "hg" on what was allocated, and no page faults where it is used again."""
    body = """
        import ctypes, resource
        hf_attention.cli.keep_freed_memory()
        block = ctypes.create_string_buffer(2**26)
        address, advised = ctypes.addressof(block), False
        for line in open("/proc/self/smaps"):
            name, *rest = line.split()
            if "-" in name:
                start, end = (int(side, 16) for side in name.split("-"))
            elif name == "VmFlags:" and start <= address < end:
                advised = "hg" in rest
        del block
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        ctypes.create_string_buffer(2**26)
        print(advised, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    program = "import hf_attention.cli\n" + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    advised, faults = done.stdout.split()
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages to advise on")
    assert advised == "True" and int(faults) < 2**26 / 4096 / 100
