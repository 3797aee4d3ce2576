"""Drafts over the real socket, to a real daemon with the scripted engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvd.errors import CancelledError, KvdError
from kvd.rpc import messages
from kvd.rpc.client import Client
from tests.conftest import FakeDaemon, poll
from tests.counting import by_label, metrics, single

pytestmark = pytest.mark.usefixtures("fake_daemon")


def draft(text: str, repository: Path, **more: Any) -> dict[str, Any]:
    return {"question": f"{text} session expired", "repo": str(repository), **more}


def leased(client: Client) -> int:
    return int(client.call("status", {})["engine"]["pool"]["leased"])


def test_what_makes_no_sense_gets_the_usual_error(repository: Path) -> None:
    with Client.connect() as client:
        for params, code in (
            ({"question": "  ", "repo": str(repository)}, "usage"),
            ({"question": "x" * 20_001, "repo": str(repository)}, "usage"),
            ({"question": "session"}, "usage"),
            (draft("say", repository, top_k=0), "usage"),
            (draft("say", repository, budget=63), "usage"),
            (draft("say", repository, max_tokens=5), "usage"),
            ({"question": "session", "repo": "src"}, "usage"),
            ({"question": "session", "repo": "/no/such/folder"}, "repository"),
            # An index is not made for it.
            (draft("say", repository), "store"),
        ):
            with pytest.raises(KvdError) as caught:
                client.call("prefetch", params, timeout=10.0)
            assert caught.value.code == code, params
            assert "\n" not in caught.value.message
        assert client.call("status", {})["indexes"] == []


def test_a_draft_takes_the_index_as_it_is_and_loads_nothing(repository: Path) -> None:
    with Client.connect() as client:
        client.call("index", {"path": str(repository)})
        (repository / "src" / "later.py").write_text("def session_expired_later(): ...\n")
        result = client.call("prefetch", draft("say", repository, top_k=1))
        assert result == {
            "repo": str(repository),
            "chunks": 1,
            "dropped": "no-engine",
            "hot": 0,
            "loaded": 0,
            "missing": 0,
        }
        status = client.call("status", {})
        assert status["engine"]["state"] == "stopped"
        assert status["indexes"][0]["files"] == 3


def test_a_lease_ends_with_its_connection(repository: Path, fake_daemon: FakeDaemon) -> None:
    with Client.connect() as client, Client.connect() as other:
        other.call("ask", draft("say", repository))
        for _ in range(2):
            result = client.call("prefetch", draft("say", repository / "src"))
            assert (result["repo"], result["dropped"]) == (str(repository), "")
            assert result["loaded"] == result["chunks"] > 0
        other.call("prefetch", draft("say", repository))
        assert leased(other) == 2
        assert single(metrics(other), "kvd_prefetched_blocks_total") == 3 * result["loaded"]
        # Nothing is wanted of what recalls nothing.
        nothing = client.call("prefetch", {"question": "pancakes", "repo": str(repository)})
        assert (nothing["chunks"], nothing["dropped"]) == (0, "")
        assert leased(other) == 1
        client.call("prefetch", draft("say", repository))
        assert leased(other) == 2
        client.close()
        poll(lambda: leased(other) == 1)


def test_a_draft_in_flight_can_be_cancelled_replaced_and_left(repository: Path) -> None:
    with Client.connect() as client, Client.connect() as other:
        other.call("ask", draft("say", repository))
        client._send(messages.request(1000, "prefetch", draft("slow", repository)))
        poll(lambda: other.call("status", {})["daemon"]["active"] == 1)
        client._send(messages.request(None, messages.CANCEL, {"id": 1000}))
        with pytest.raises(CancelledError):
            client._receive(1000, None)
        poll(lambda: leased(other) == 0)
        client._send(messages.request(1001, "prefetch", draft("slow", repository)))
        client._send(messages.request(1002, "prefetch", draft("say", repository)))
        answers = [client._next_message() for _ in range(2)]
        dropped = {answer["id"]: answer["result"]["dropped"] for answer in answers}
        assert dropped == {1001: "replaced", 1002: ""}
        client._send(messages.request(1003, "prefetch", draft("slow", repository)))
        client.close()
        poll(lambda: other.call("status", {})["daemon"]["active"] == 0)
        poll(lambda: leased(other) == 0)
        found = by_label(metrics(other), "kvd_requests_total", "method", "outcome")
        assert found["prefetch", "cancelled"] == 2
        assert other.call("ask", draft("say", repository))["answer"]
