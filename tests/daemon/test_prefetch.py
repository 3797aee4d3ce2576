"""Drafts over the real socket, to a real daemon with the scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


def drafts_begun(client: Client) -> int:
    """How many the engine has had in hand."""
    return int(client.call("status", {})["engine"]["pool"]["drafts"])


@contextmanager
def typing(count: int, text: str, repository: Path, other: Client) -> Iterator[list[Client]]:
    """So many clients whose drafts are on their way; a search that came after them has been answered."""
    clients = [Client.connect() for _ in range(count)]
    try:
        for number, client in enumerate(clients):
            client._send(messages.request(1000, "prefetch", draft(f"{text} {number}", repository)))
        poll(lambda: other.call("status", {})["daemon"]["active"] >= count - 1)
        other.call("search", {"query": "session", "repo": str(repository)})
        yield clients
    finally:
        for client in clients:
            client.close()


def test_what_makes_no_sense_gets_the_usual_error(repository: Path) -> None:
    with Client.connect() as client:
        for params, code in (
            ({"question": "  ", "repo": str(repository)}, "usage"),
            ({"question": "x" * 20_001, "repo": str(repository)}, "usage"),
            ({"question": "session"}, "usage"),
            (draft("say", repository, top_k=0), "usage"),
            (draft("say", repository, budget=63), "usage"),
            (draft("say", repository, max_tokens=5), "usage"),
            (draft("say", repository, languages=["klingon"]), "usage"),
            (draft("say", repository, paths=["!"]), "usage"),
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


def test_drafts_of_many_clients_are_no_line_that_a_question_stands_in(repository: Path) -> None:
    with Client.connect() as other:
        other.call("ask", draft("say", repository))
        with typing(40, "slow", repository, other) as clients:
            assert other.call("ask", draft("say", repository))["answer"]
            answers = [client._receive(1000, None) for client in clients]
            assert {answer["dropped"] for answer in answers} == {"busy"}
            # The rest did not even reach the engine.
            assert drafts_begun(other) <= 1


def test_clients_that_leave_with_drafts_in_line_cost_a_question_nothing(repository: Path) -> None:
    with Client.connect() as other:
        other.call("ask", draft("say", repository))
        pid = other.call("status", {})["engine"]["pid"]
        # Together they would take the engine half a minute, longer than it gets to listen to a cancel.
        with typing(100, "costly", repository, other) as clients:
            other._send(messages.request(2000, "ask", draft("say", repository)))
            for client in clients:
                client.close()
            assert other._receive(2000, None)["answer"]
        poll(lambda: other.call("status", {})["daemon"]["active"] == 0)
        assert other.call("status", {})["engine"]["pid"] == pid
        # One as the question came, and those before it.
        assert drafts_begun(other) < 50
        poll(lambda: leased(other) == 0)


def test_the_next_draft_ends_the_lease_even_where_it_is_dropped(repository: Path) -> None:
    with Client.connect() as client, Client.connect() as other, Client.connect() as third:
        other.call("ask", draft("say", repository))
        client.call("prefetch", draft("say", repository))
        assert leased(other) == 1
        third._send(messages.request(1000, "ask", draft("slow", repository)))
        poll(lambda: other.call("status", {})["engine"]["state"] == "busy")
        assert client.call("prefetch", draft("say", repository))["dropped"] == "busy"
        third._send(messages.request(None, messages.CANCEL, {"id": 1000}))
        poll(lambda: leased(other) == 0)
