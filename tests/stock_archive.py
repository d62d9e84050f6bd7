"""Transformers' own test mixins, taken from the source archive of the installed version.

The wheel carries no tests; the source archive on the package registry carries the files at the top of `tests/`, not
the folders below. `stock_module` unpacks those files into a cache outside the repository and imports them as a private
package, so that nothing shadows a `tests` package. What they import and the archive lacks is made here: two empty
sub-mixins (generation, export), the config fields one mixin sets, and the few functions that start the processes of a
distributed test on the CPU.
"""

import importlib
import json
import multiprocessing.connection
import os
import pickle
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import transformers


PACKAGE = "stock_transformers_tests"
COMMON_CONFIG_FIELDS = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", "architectures": ["A"]}
RANK_TIMEOUT = 180  # seconds
NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError")


class NoNetwork(Exception):
    """The archive is not cached and the registry cannot be reached."""


def cache_folder() -> Path:
    """Where unpacked archives are kept: `HF_ATTENTION_CACHE`, or `~/.cache/hf_attention`."""
    return Path(os.environ.get("HF_ATTENTION_CACHE") or Path.home() / ".cache" / "hf_attention")


def archive_folder() -> Path:
    """The folder that holds the archive's `tests/*.py` for the installed version, downloaded with pip the first time.

    Raises `NoNetwork` when the registry cannot be reached, and `RuntimeError` with pip's words for any other failure.
    """
    release = f"transformers-{transformers.__version__}"
    target = cache_folder() / release
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{release}-") as scratch:
        archive = _download(Path(scratch))
        unpacked = Path(scratch, "tests")
        unpacked.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = Path(member.name).parts
                if member.isfile() and len(parts) == 3 and parts[1] == "tests" and parts[2].endswith(".py"):
                    Path(unpacked, parts[2]).write_bytes(tar.extractfile(member).read())
        if not Path(unpacked, "test_modeling_common.py").is_file():
            raise RuntimeError(f"{archive.name} holds no tests/test_modeling_common.py")
        try:
            unpacked.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--retries", "2"]
    command += ["--dest", str(folder), f"transformers=={transformers.__version__}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = done.stdout + done.stderr
        if NO_NETWORK.search(words):
            raise NoNetwork(f"transformers {transformers.__version__}'s source archive is not cached, and no network")
        raise RuntimeError(f"{' '.join(command)} failed:\n{words}")
    return next(folder.glob("*.tar.gz"))


def stock_module(name: str) -> ModuleType:
    """The archive's `tests/<name>.py`, imported inside the private package."""
    if PACKAGE not in sys.modules:
        package = _module(PACKAGE)
        package.__path__ = [str(archive_folder())]
        _module(f"{PACKAGE}.generation").__path__ = []
        _module(f"{PACKAGE}.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
        _module(f"{PACKAGE}.utils").__path__ = []
        _module(f"{PACKAGE}.utils.test_configuration_utils", config_common_kwargs=COMMON_CONFIG_FIELDS)
        _module(f"{PACKAGE}.exporters").__path__ = []
        _module(f"{PACKAGE}.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
        _module(
            f"{PACKAGE}.distributed_testing_utils",
            run_distributed=run_distributed,
            _start_rank_processes=start_rank_processes,
            _get_distributed_backend=lambda: "gloo",
            _get_distributed_device_type=lambda: "cpu",
            _get_rank_device=lambda rank: torch.device("cpu"),
            _set_rank_device=lambda rank: None,
        )
    with tempfile.TemporaryDirectory() as no_tiny_models, warnings.catch_warnings():
        # The pipeline mixin reads, while it is imported, a summary of the tiny models (it is not in the archive) and
        # imports the library once more, from the archive's `src/`.
        warnings.filterwarnings("ignore", category=_unknown_mark_warning())
        summary = Path(no_tiny_models, "reports", "tiny_model_summary.json")
        summary.parent.mkdir()
        summary.write_text(json.dumps({}))
        with (
            unittest.mock.patch.dict(os.environ, TRANSFORMERS_TINY_MODEL_PATH=no_tiny_models),
            unittest.mock.patch("transformers.utils.direct_transformers_import", lambda path: transformers),
        ):
            return importlib.import_module(f"{PACKAGE}.{name}")


def _module(name: str, **contents: Any) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(contents)
    return module


def _unknown_mark_warning() -> type[Warning]:
    import pytest

    return pytest.PytestUnknownMarkWarning


# The processes of a distributed test: gloo on the CPU, one thread each.


def run_distributed(world_size: int) -> Callable:
    """`run_distributed(2)(function)(*args)` calls `function(rank, *args)` on every rank of a group of processes."""
    return lambda function: (
        lambda *args: start_rank_processes(_in_group, (world_size, _free_port(), function, args), world_size)
    )


def start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """Calls `function(rank, *args)` in `nprocs` processes and raises when one of them fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.tensor", "transformers.modeling_utils"])
    call = pickle.dumps((function, args))
    processes = [context.Process(target=_rank, args=(rank, call)) for rank in range(nprocs)]
    for process in processes:
        process.start()
    try:
        while running := [process.sentinel for process in processes if process.is_alive()]:
            if not multiprocessing.connection.wait(running, timeout=RANK_TIMEOUT):
                raise AssertionError(f"no rank has ended for {RANK_TIMEOUT} s")
            if any(process.exitcode for process in processes):  # the others would wait for it in vain
                break
        codes = [process.exitcode for process in processes]
        if any(codes):
            raise AssertionError(f"exit codes of the ranks: {codes}; the tracebacks are on standard error")
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rank(rank: int, call: bytes) -> None:
    torch.set_num_threads(1)
    stock_module("test_modeling_common")  # `call` names functions of the private package
    function, args = pickle.loads(call)
    function(rank, *args)


def _in_group(rank: int, world_size: int, port: int, function: Callable, args: tuple) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    function(rank, *args)
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
