"""Stands in for `python -m kvd.worker`: speaks its frames, answers by a script that the question gives.

    die NAME      raise that signal after the first token      slow       a token every 20 ms until cancelled
    garbage       write what is no frame                       deaf       like slow, but ignores cancel
    store         send blocks, touch and drop                  fail       answer with an error
    say TEXT      answer TEXT                                  count N    N tokens, one every 20 ms
    broken        answer, then find the pool broken            pour N     N tokens of 1,000 characters, at once
    history       answer how many turns were before, and how many chunks are new and how many present
    vectors       answer the lengths of the question's vector and of the chunks'
    anything else: "It is in [1]."

Before an answer the calls are those of the variable `KVD_FAKE_CALLS`, a list in JSON, one a round, then those that
lines of the code have behind `calls `, then `answer()`. Where the first one is `wait`, as long as it is not cancelled.

A draft of a question is brought in at once, a chunk to a block, and leased to its client; one that begins with

    slow          is brought in when it is cancelled           die NAME   raises that signal
    costly        takes 0.3 s, cancelled or not                deaf       takes for ever, cancelled or not

Of candidates to judge, each gains a nat more than the one before.

Each question counts as nine blocks found in the pool and one not. A model named `fail-to-load`, `die-at-load` or
`slow-to-load` does that when it is loaded. One named `aborts-above N` dies of more than N of its 29 layers on the GPU,
ten fewer being the next to try; `fails-above N` tells that they don't fit, and goes on by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from numpy.linalg import norm

from kvd.worker.protocol import STATE_FORMAT, decode_vector, encode_frame, read_frame

Message = dict[str, Any]
TOKENS = {"recalled": 100, "reused_hot": 90, "recomputed": 10, "fresh": 20, "generated": 5}

inbox: queue.Queue[Message | None] = queue.Queue()
cancelled: set[int] = set()
leases: set[int] = set()
drafts: list[str] = []
decided: list[str] = []
counters = {"hot_hit": 0, "hot_miss": 0, "prefetched": 0, "integrity_failures": 0}


def send(message: Message, blob: bytes = b"") -> None:
    sys.stdout.buffer.write(encode_frame({**message, "counters": counters}, blob))
    sys.stdout.buffer.flush()


def listen() -> None:
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        if frame[0]["method"] == "cancel":
            cancelled.add(frame[0]["params"]["id"])
        else:
            inbox.put(frame[0])
    inbox.put(None)


def placed(layers: int, why: str) -> Message:
    text = f"{layers} of 29 layers on the GPU" if layers else "CPU only"
    return {"layers": layers, "total": 29, "pool": "host", "why": why, "text": text}


def place(number: int, params: Message) -> Message:
    """Where the model ends up, if that is not this process's end."""
    verb, _, most = params["model_name"].partition("-above ")
    placement, failure = params["placement"] or placed(29, "all of it fits"), ""
    while True:
        layers = placement["layers"]
        following = placed(max(0, layers - 10), "") if layers else None
        told = {"placement": placement, "next": following, "failure": failure}
        send({"id": number, "event": "placement", "data": told})
        if layers <= int(most):
            return placement
        if verb == "aborts":
            os.abort()
        assert following is not None
        failure = f"{placement['text']}: no room"
        placement = {**following, "why": failure}


def load(number: int, params: Message) -> Message:
    name = params["model_name"]
    if name == "die-at-load":
        os.kill(os.getpid(), signal.SIGILL)
    if name == "slow-to-load":
        time.sleep(0.5)
    facts = {"model": name, "n_ctx": params["n_ctx"], "reuse": "on", "reuse_reason": "", "recompute": 0}
    return {**facts, "placement": place(number, params)} if "-above " in name else facts


def say(number: int, text: str) -> None:
    send({"id": number, "event": "token", "data": {"text": text}})


def answer(number: int, text: str, params: Message) -> None:
    order = [index for index, chunk in enumerate(params["chunks"]) if not chunk.get("present")]
    # Prompt order is not rank order: the best two change places.
    order[:2] = order[1::-1] if len(order) > 1 else order
    result = {
        "answer": text,
        "finish": "stop",
        "chunks": order,
        "tokens": TOKENS,
        "timings_ms": {"load": 1.5},
        "quoted": {},
    }
    if "conversation" in params:
        result["conversation"] = converse(params["conversation"], len(order), params["question"].startswith("full "))
    send({"id": number, "result": result})


def converse(conversation: Message, chunks: int, full: bool) -> Message:
    """A turn has one block, which takes the place of that of the turn before. Its key says whose it is, and when.
    Where the context is `full` all that was there before leaves it."""
    state = conversation["state"] or {"held": [], "blocks": [], "turns": 0, "labels": 0, "first": 1, "summary": ""}
    turns, replaced = state["turns"] + 1, [block[1] for block in state["blocks"]]
    key = f"{turns:02x}" * 32
    entry = {"key": key, "parent": conversation["root"], "fingerprint": "ff", "tokens": 2, "seconds": 0.1, "size": 4}
    send({"event": "blocks", "data": {"blocks": [entry]}}, b"said")
    labels = state["labels"] + chunks
    held = [*([] if full else state["held"]), *range(state["labels"] + 1, labels + 1)]
    left = (
        {"first": turns, "summary": "what was said"} if full else {"first": state["first"], "summary": state["summary"]}
    )
    blocks = [[0, key, conversation["root"], [1, 2]]]
    state = {"format": STATE_FORMAT, "held": held, "blocks": blocks, "turns": turns, "labels": labels, **left}
    return {"state": state, "replaced": replaced, "tokens": 30 * turns, "resident": 5, "loaded": 0, "computed": 1}


def history(params: Message) -> str:
    conversation = params.get("conversation", {"turns": []})
    asked = [turn["question"] for turn in conversation["turns"]]
    present = sum(bool(chunk.get("present")) for chunk in params["chunks"])
    return f"{len(asked)} before, {len(params['chunks']) - present} new, {present} present"


def store_events() -> None:
    entry = {"parent": "00", "fingerprint": "ff", "tokens": 2, "seconds": 0.1}
    blocks = [{**entry, "key": "aa", "size": 3}, {**entry, "key": "bb", "size": 4}]
    send({"event": "blocks", "data": {"blocks": blocks}}, b"onefour")
    send({"event": "touch", "data": {"keys": ["aa"]}})
    send({"event": "drop", "data": {"keys": ["bb"], "reason": "checksum"}})


def drone(number: int, deaf: bool) -> None:
    while number not in cancelled or deaf:
        say(number, "word ")
        time.sleep(0.02)
    send({"id": number, "error": {"code": "cancelled", "message": "cancelled", "hint": ""}})


def find_broken() -> None:
    counters["integrity_failures"] += 1
    send({"event": "integrity", "data": {"reason": "a page is lost"}})
    os._exit(1)


def stream(number: int, verb: str, tokens: int) -> None:
    for _ in range(tokens):
        if verb == "count":
            say(number, "word ")
            time.sleep(0.02)
        elif number not in cancelled:
            say(number, "x" * 1000)


def quote(number: int, params: Message) -> None:
    """What was said has no lines, and a block each."""
    said = {str(index): chunk["text"] for index, chunk in enumerate(params["chunks"]) if not chunk["end_line"]}
    keys = {index: hashlib.sha256(text.encode()).hexdigest() for index, text in said.items()}
    if keys:
        send({"id": number, "event": "quoted", "data": {"blocks": {index: [key] for index, key in keys.items()}}})
    for key in keys.values():
        entry = {"key": key, "parent": "00", "fingerprint": "ff", "tokens": 2, "seconds": 0.1, "size": 6}
        send({"event": "blocks", "data": {"blocks": [entry]}}, b"quoted")


def ask(number: int, params: Message) -> None:
    counters["hot_hit"] += 9
    counters["hot_miss"] += 1
    send({"id": number, "event": "stage", "data": {"stage": "prefill", "done": 1, "total": 2, "message": ""}})
    quote(number, params)
    verb, _, rest = params["question"].partition(" ")
    if verb in ("slow", "deaf"):
        drone(number, verb == "deaf")
        return
    if verb == "fail":
        send({"id": number, "error": {"code": "model", "message": "no room", "hint": "kvd setup"}})
        return
    text = rest if verb == "say" else history(params) if verb == "history" else "It is in [1]."
    text = params["pinned"] if verb == "pinned" else text
    if verb == "vectors":
        text = " ".join(f"{norm(decode_vector(item['vector'])):.2f}" for item in (params, *params["chunks"]))
    if verb in ("count", "pour"):
        stream(number, verb, int(rest.split()[0]))
    say(number, text)
    if verb == "die":
        os.kill(os.getpid(), getattr(signal, rest.split()[0]))
    elif verb == "garbage":
        sys.stdout.buffer.write(b"\xff" * 64)
        sys.stdout.buffer.flush()
    elif verb == "store":
        store_events()
    answer(number, text, params)
    if verb == "broken":
        find_broken()


def decide(number: int, params: Message) -> None:
    asked = params["question"]
    words = json.loads(os.environ.get("KVD_FAKE_CALLS", "[]"))
    orders = [line.partition("calls ")[2] for chunk in params["chunks"] for line in chunk["text"].splitlines()]
    decided.append(asked)
    calls = [*words, *(order for order in orders if order)]
    if calls and calls[0] == "wait":
        drone(number, False)
        return
    call = calls[decided.count(asked) - 1] if decided.count(asked) <= len(calls) else "answer()"
    send({"id": number, "result": {"answer": call, "finish": "stop", "chunks": list(range(len(params["chunks"])))}})


def prefetch(number: int, params: Message) -> None:
    (leases.add if params["chunks"] else leases.discard)(params["client"])
    drafts.append(params["question"])
    verb, _, rest = params["question"].partition(" ")
    if verb == "die":
        os.kill(os.getpid(), getattr(signal, rest.split()[0]))
    if verb == "costly":
        time.sleep(0.3)
    while verb == "deaf" or (verb == "slow" and number not in cancelled):
        time.sleep(0.01)
    counters["prefetched"] += len(params["chunks"])
    send({"id": number, "result": {"dropped": "", "hot": 0, "loaded": len(params["chunks"]), "missing": 0}})


def stats() -> Message:
    return {"pool": {"bytes": 1000, "used_bytes": 10, "blocks": 1, "leased": len(leases), "drafts": len(drafts)}}


def main() -> None:
    print("fake engine is up", file=sys.stderr, flush=True)
    threading.Thread(target=listen, daemon=True).start()
    while (message := inbox.get()) is not None:
        number, method, params = message["id"], message["method"], message["params"]
        if method in ("ask", "decide"):
            (ask if method == "ask" else decide)(number, params)
        elif method == "load" and params["model_name"] == "fail-to-load":
            send({"id": number, "error": {"code": "model", "message": "not a model", "hint": "kvd setup"}})
        elif method == "load":
            send({"id": number, "result": load(number, params)})
        elif method == "stats":
            send({"id": number, "result": stats()})
        elif method == "prefetch":
            prefetch(number, params)
        elif method == "rank":
            # The last one is the best.
            send({"id": number, "result": {"gains": [float(n) for n in range(len(params["chunks"]))], "computed": 0}})
        elif method in ("release", "forget"):
            leases.discard(params.get("client"))
            send({"id": number, "result": {}})
        elif method == "shutdown":
            send({"id": number, "result": {}})
            return


if __name__ == "__main__":
    main()
