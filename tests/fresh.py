"""Runs code in a Python process of its own: what one process registered, another must not need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


REPOSITORY = Path(__file__).parents[1]

# Where the package is installed, this hides it, and an attempt to import it fails as if it were not.
WITHOUT_PACKAGE = "import sys; sys.modules['hf_attention'] = None\n"


def run(code: str, cwd: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """Runs `code` with its own caches under `cwd`, no network and nobody to answer a prompt."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(cwd / "hf_home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONPATH": str(REPOSITORY), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=inherited | own | environment, text=True, capture_output=True, stdin=subprocess.DEVNULL
    )


def result(code: str, cwd: Path, *arguments: object, **environment: str) -> Any:
    """What `code` put into the name `result`, by way of JSON."""
    answer = cwd / "result.json"
    done = run(code + f"\nimport json; json.dump(result, open({str(answer)!r}, 'w'))", cwd, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())
