"""`kvd serve` and the official client, against a real daemon with the scripted engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from kvd import paths
from kvd.rpc.client import Client as DaemonClient
from tests.conftest import FakeDaemon, Kvd, poll

EXPIRED = "when is the session expired"


class Endpoint:
    """A running `kvd serve`."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            Kvd.command("serve", "--port", "0"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline() for _ in range(3)]
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.said[0])
        assert found, self.process.communicate()
        self.port = int(found[1])
        self.token = paths.token_file().read_text().strip()
        self.client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=self.token, max_retries=0)

    def ask(self, model: str, question: str = EXPIRED, **more: Any) -> Any:
        return self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], **more
        )

    def raw(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20.0)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"} | headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), {name.lower(): it for name, it in answer.getheaders()}
        finally:
            connection.close()

    def end(self) -> tuple[int, str]:
        """Ctrl-C; exit status and stderr."""
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=15.0)[1]
        return self.process.returncode, said


@pytest.fixture
def endpoint(fake_daemon: FakeDaemon, repository: Path) -> Iterator[Endpoint]:
    running = Endpoint(repository / "src")
    yield running
    running.end()


def state() -> dict[str, Any]:
    client = DaemonClient.running()
    assert client is not None
    with client:
        return client.call("status", {})


def active() -> int:
    """Requests that the daemon works on."""
    client = DaemonClient.running()
    assert client is not None
    with client:
        return int(client.server["active"])


def test_models_and_answers(endpoint: Endpoint, kvd: Kvd, repository: Path, isolated_home: Path) -> None:
    model = f"kvd:{repository}"
    assert endpoint.said[2].endswith(f"{model}\n")
    assert [it.id for it in endpoint.client.models.list()] == []
    whole = endpoint.ask(model)
    assert [it.id for it in endpoint.client.models.list()] == [model]
    assert endpoint.client.models.retrieve(model).id == model

    text = whole.choices[0].message.content
    assert text.startswith("It is in [1].\n\nSources:\n- ")
    assert "src/session.py:1-12 Session" in text
    assert "(cited)" in text
    assert (whole.model, whole.choices[0].finish_reason) == (model, "stop")
    usage = whole.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (120, 5, 125)
    assert usage.prompt_tokens_details.cached_tokens == 90
    assert whole.kvd["model"] == "fake"
    assert whole.kvd["ignored_messages"] == 0

    chunks = list(
        endpoint.ask(model, "say the session is expired", stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)
    assert streamed.startswith("the session is expired\n\nSources:\n- ")
    assert [it.choices[0].finish_reason for it in chunks if it.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 125
    assert len({it.id for it in chunks}) == 1

    talk: list[Any] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "fail"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": [{"type": "text", "text": "say session expired"}]},
    ]
    last = endpoint.client.chat.completions.create(model=model, messages=talk, max_completion_tokens=50)
    assert str(last.choices[0].message.content).startswith("session expired\n")
    assert last.kvd["ignored_messages"] == 3  # type: ignore[attr-defined]  # beyond OpenAI's form

    # Nothing relevant: no model, no sources, and an answer all the same.
    for stream in (False, True):
        answer = endpoint.ask(model, "zebra quagga okapi", stream=stream)
        parts = [it.choices[0].delta.content or "" for it in answer] if stream else [answer.choices[0].message.content]
        assert "".join(parts) == "Nothing in this repository seems relevant to the question."


def test_errors(endpoint: Endpoint, repository: Path, isolated_home: Path) -> None:
    model = f"kvd:{repository}"
    with pytest.raises(openai.InternalServerError, match="the engine stopped") as dead:
        endpoint.ask(model, "die SIGKILL session is expired")
    assert dead.value.status_code == 503
    with pytest.raises(openai.NotFoundError) as unknown:
        endpoint.ask("gpt-9")
    assert unknown.value.code == "model_not_found"
    assert "such as kvd:/home/me/shop" in unknown.value.message
    with pytest.raises(openai.NotFoundError):
        endpoint.ask(f"kvd:{isolated_home}/missing")
    with pytest.raises(openai.BadRequestError, match="n can only be 1"):
        endpoint.ask(model, n=2)
    with pytest.raises(openai.BadRequestError, match="the question is empty"):
        endpoint.ask(model, " ")
    with pytest.raises(openai.InternalServerError, match=r"no room \(hint: kvd setup\)"):
        endpoint.ask(model, "fail session", stream=True)
    assert endpoint.raw("POST", "/v1/chat/completions", b"{nonsense")[0] == 400
    assert endpoint.raw("POST", "/v1/chat/completions", b"[]")[0] == 400
    assert endpoint.raw("POST", "/v1/chat/completions", b" " * (2 << 20))[0] == 413
    assert endpoint.raw("GET", "/v1/chat/completions")[0] == 405
    status, body, _ = endpoint.raw("GET", "/v1/nothing")
    assert (status, body["error"]["type"]) == (404, "invalid_request_error")
    # The engine dies in the middle of a stream: its status is sent, so the stream says it.
    with pytest.raises(openai.APIError):
        list(endpoint.ask(model, "die SIGKILL session is expired", stream=True))


def test_who_may_ask(endpoint: Endpoint, repository: Path) -> None:
    assert stat.S_IMODE(paths.token_file().stat().st_mode) == 0o600
    assert len(endpoint.token) >= 40
    assert str(paths.token_file()) in endpoint.said[1]
    for wrong in ("", "Bearer", f"Bearer {endpoint.token}x", f"Basic {endpoint.token}", "Bearer \xe9"):
        status, body, headers = endpoint.raw("GET", "/v1/models", Authorization=wrong)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert headers["www-authenticate"] == "Bearer"
    for host in ("evil.example", f"evil.example:{endpoint.port}", "127.0.0.1:1", f"127.0.0.1.evil:{endpoint.port}"):
        assert endpoint.raw("GET", "/v1/models", Host=host)[0] == 403
    status, _, headers = endpoint.raw(
        "GET", "/v1/models", Host=f"localhost:{endpoint.port}", Origin="http://evil.example"
    )
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]
    # Nobody listens on other addresses.
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", endpoint.port))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels(endpoint: Endpoint, repository: Path, stream: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20.0)
    messages = [{"role": "user", "content": "slow session"}]
    body = json.dumps({"model": f"kvd:{repository}", "messages": messages, "stream": stream})
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {endpoint.token}"})
    if stream:
        assert connection.getresponse().read(6) == b"data: "
    poll(lambda: active() == 1)
    connection.close()
    poll(lambda: active() == 0)


def test_too_many_are_told_so(endpoint: Endpoint, repository: Path) -> None:
    """Each request has a connection of its own to the daemon, so its line can fill."""
    body = json.dumps({"model": f"kvd:{repository}", "messages": [{"role": "user", "content": "slow session"}]})
    with ExitStack() as waiting:
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20.0)
            waiting.callback(connection.close)
            connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {endpoint.token}"})
        poll(lambda: state()["engine"].get("waiting") == 16)
        with pytest.raises(openai.RateLimitError) as busy:
            endpoint.ask(f"kvd:{repository}")
        assert busy.value.status_code == 429
    poll(lambda: active() == 0)


def test_the_key_and_the_end(kvd: Kvd, isolated_home: Path) -> None:
    first = Endpoint(kvd.folder)
    taken = kvd.run("serve", "--port", str(first.port))
    assert taken.returncode == 1
    assert taken.stderr.startswith(f"kvd: can't listen on 127.0.0.1:{first.port}: ")
    assert DaemonClient.running() is None
    status, said = first.end()
    assert (status, said) == (130, "kvd: interrupted\n")
    paths.token_file().chmod(0o644)
    open_to_all = kvd.run("serve", "--port", "0")
    assert open_to_all.returncode == 1
    assert open_to_all.stderr == (
        f"kvd: others can read the key in {paths.token_file()}\nhint: rm {paths.token_file()}\n"
    )


def test_without_the_extra(kvd: Kvd, isolated_home: Path) -> None:
    blocker = isolated_home / "blocked"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import sys
            class Blocker:
                def find_spec(self, name, path=None, target=None):
                    if name.partition(".")[0] == "uvicorn":
                        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            sys.meta_path.insert(0, Blocker())
        """)
    )
    path = os.pathsep.join([str(blocker), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        Kvd.command("serve"),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30.0,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kvd: `kvd serve` needs the packages starlette and uvicorn\nhint: pip install 'kvd[serve]'\n"
