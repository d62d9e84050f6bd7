"""A Hub on 127.0.0.1: the endpoints that the real `huggingface_hub` client calls to push and to load models.

Point `HF_ENDPOINT` at it before `huggingface_hub` is imported, and set `HF_HUB_DISABLE_XET=1`: large files then go by
the LFS protocol. Repositories live in memory; every commit is a whole snapshot.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


TOKEN = "hf_token_of_the_tests"
USER = "tester"


@dataclass
class Commit:
    sha: str
    message: str
    files: dict[str, bytes]
    lfs: frozenset[str]


@dataclass
class Repository:
    commits: list[Commit] = field(default_factory=list)

    def commit(self, message: str, changes: dict[str, bytes | None], lfs: set[str]) -> Commit:
        before = self.commits[-1] if self.commits else Commit("", "", {}, frozenset())
        files = {name: data for name, data in (before.files | changes).items() if data is not None}
        sha = hashlib.sha1(f"{before.sha}{message}{sorted(files)}{len(self.commits)}".encode()).hexdigest()
        self.commits.append(Commit(sha, message, files, (before.lfs | lfs) & files.keys()))
        return self.commits[-1]

    def at(self, revision: str) -> Commit | None:
        if revision in ("main", "HEAD"):
            return self.commits[-1]
        return next((commit for commit in self.commits if commit.sha == revision), None)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1].files


class Hub:
    """`with Hub() as hub:` serves at `hub.url`; `repositories` is what was pushed, `requests` what was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}  # LFS, by sha256
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """For a process that pushes; one that only reads needs no `HF_TOKEN`."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    # -- Reading -----------------------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path_asked()
        if path == "/api/whoami-v2":
            return self.answer({"name": USER, "type": "user", "orgs": [], "auth": {}}) if self.may_write() else None
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            if commit := self.find(match[1], match[2] or "main"):
                siblings = [{"rfilename": name} for name in sorted(commit.files)]
                self.answer(
                    {
                        "id": match[1],
                        "modelId": match[1],
                        "sha": commit.sha,
                        "private": False,
                        "tags": [],
                        "pipeline_tag": "translation",
                        "library_name": "transformers",
                        "siblings": siblings,
                    }
                )
            return None
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            if commit := self.find(match[1], match[2]):
                prefix = f"{match[3].rstrip('/')}/" if match[3] else ""
                files = {name: data for name, data in commit.files.items() if name.startswith(prefix)}
                self.answer(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": git_oid(data)}
                        for name, data in files.items()
                    ]
                )
            return None
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if commit := self.find(match[1], match[2]):
                data = commit.files.get(match[3])
                headers = {"X-Repo-Commit": commit.sha}
                if data is None:
                    return self.refuse(404, "EntryNotFound", headers)
                lfs = match[3] in commit.lfs
                headers["ETag"] = f'"{hashlib.sha256(data).hexdigest() if lfs else git_oid(data)}"'
                self.answer_bytes(200, data, "application/octet-stream", headers)
            return None
        return self.refuse(404, "NotFound")

    # -- Writing -----------------------------------------------------------------------------------------------------

    def do_PUT(self) -> None:
        path, body = self.path_asked(), self.body()
        oid = path.removeprefix("/lfs/")
        if hashlib.sha256(body).hexdigest() != oid:
            return self.refuse(400, "ChecksumMismatch")
        self.hub.objects[oid] = body
        return self.answer({})

    def do_POST(self) -> None:
        path, body = self.path_asked(), self.body()
        if not self.may_write():
            return None
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or USER}/{asked['name']}"
            known = name in self.hub.repositories
            if not known:
                self.hub.repositories[name] = Repository()
                self.hub.repositories[name].commit("initial commit", {".gitattributes": b""}, set())
            return self.answer({"url": f"{self.hub.url}/{name}", "name": name}, status=409 if known else 200)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", path):
            if self.find(match[1], match[2]):
                large = (".safetensors", ".bin", ".pt")
                self.answer(
                    {
                        "files": [
                            {
                                "path": file["path"],
                                "shouldIgnore": False,
                                "uploadMode": "lfs" if file["path"].endswith(large) else "regular",
                            }
                            for file in json.loads(body)["files"]
                        ]
                    }
                )
            return None
        if re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.answer(
                {
                    "transfer": "basic",
                    "objects": [
                        {**entry, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"}}}
                        if entry["oid"] not in self.hub.objects
                        else entry
                        for entry in json.loads(body)["objects"]
                    ],
                }
            )
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            if self.find(match[1], match[2]):
                commit = self.commit(match[1], [json.loads(line) for line in body.splitlines()])
                self.answer(
                    {
                        "success": True,
                        "commitOid": commit.sha,
                        "commitUrl": f"{self.hub.url}/{match[1]}/commit/{commit.sha}",
                    }
                )
            return None
        return self.refuse(404, "NotFound")

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> Commit:
        changes: dict[str, bytes | None] = {}
        lfs, message = set(), ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                changes[value["path"]] = self.hub.objects[value["oid"]]
                lfs.add(value["path"])
            elif line["key"] == "deletedFile":
                changes[value["path"]] = None
        return self.hub.repositories[repository].commit(message, changes, lfs)

    # -- HTTP --------------------------------------------------------------------------------------------------------

    def path_asked(self) -> str:
        self.hub.requests.append(f"{self.command} {self.path}")
        return unquote(urlsplit(self.path).path)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def may_write(self) -> bool:
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not allowed:
            self.refuse(401, "Unauthorized")
        return allowed

    def find(self, repository: str, revision: str) -> Commit | None:
        known = self.hub.repositories.get(repository)
        commit = known and known.at(revision)
        if not commit:
            self.refuse(404, "RevisionNotFound" if known else "RepoNotFound")
        return commit

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.answer_bytes(
            status, b"", "text/plain", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}
        )

    def answer(self, value: Any, status: int = 200) -> None:
        self.answer_bytes(status, json.dumps(value).encode(), "application/json", {})

    def answer_bytes(self, status: int, data: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
