"""Sessions at work: one turn at a time in each, kept when it is complete; deleted with all that belongs to them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvd.service.engine import EngineClient
from kvd.service.memories import BEARS, IN_PROMPT, Memories, Recalled
from kvd.service.store_writer import StoreWriter
from kvd.service.threads import run_cancellable
from kvd.sessions.records import Quote, SaidChunk, Session, Turn
from kvd.sessions.store import SessionStore
from kvd.source.commit import head_commit
from kvd.types import Chunk, Hit
from kvd.worker.protocol import STATE_FORMAT

if TYPE_CHECKING:
    from kvd.service.follow_up import Used

_log = logging.getLogger(__name__)

_DAY_SECONDS = 86_400.0


@dataclass(slots=True)
class _Line:
    """Who waits for a session or works on it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation as it is before a turn: the turns and the code that its prompt holds, the last turn in any case.

    `state` is the engine's, of which nothing but `held`, `first`, `labels` and `summary` means anything here.
    """

    session: Session
    turns: list[Turn]
    chunks: list[SaidChunk]
    state: dict[str, Any] | None
    quotes: dict[int, Quote]
    """Which of the chunks are turns that were recalled, by label."""

    @property
    def number(self) -> int:
        """That of the turn to come."""
        return self.session.turns + 1

    @property
    def turns_in_prompt(self) -> list[Turn]:
        """Those that a question's prompt holds word for word."""
        return [turn for turn in self.turns if turn.number >= _first(self.state)]

    @property
    def held(self) -> dict[int, SaidChunk]:
        """What of the repository is in the prompt, by label."""
        by_label = {chunk.label: chunk for chunk in self.chunks}
        labels = self.state["held"] if self.state else list(by_label)
        return {label: by_label[label] for label in labels if label in by_label}

    @property
    def labels(self) -> int:
        """The highest label that was given."""
        return int(self.state["labels"]) if self.state else max((chunk.label for chunk in self.chunks), default=0)

    def for_engine(self) -> dict[str, Any]:
        """The member `conversation` of what the engine is asked."""
        turns = [
            {
                "question": turn.question,
                "answer": turn.answer,
                "chunks": [_chunk_json(chunk) for chunk in self.chunks if chunk.turn == turn.number],
            }
            for turn in self.turns
            if turn.number >= _first(self.state)
        ]
        return {"root": self.session.family.hex(), "state": self.state, "turns": turns}

    def present(self, hits: Sequence[Hit]) -> dict[int, int]:
        """Which of the hits the prompt has already: their places, each with its label."""
        known = {(chunk.path, chunk.text): label for label, chunk in self.held.items()}
        places = {index: known.get((hit.chunk.path, hit.chunk.text)) for index, hit in enumerate(hits)}
        return {index: label for index, label in places.items() if label is not None}


class Conversations:
    """Belongs to one event loop."""

    def __init__(
        self, store: SessionStore, engine: EngineClient, writer: StoreWriter, overview: Callable[[Path], str]
    ) -> None:
        """`overview` says what a repository consists of."""
        self._store, self._engine, self._writer, self._overview = store, engine, writer, overview
        self._lines: dict[int, _Line] = {}
        self._memories = Memories(store.path)

    @asynccontextmanager
    async def going_on(self, root: Path, name: str) -> AsyncIterator[Talk]:
        """The session of that name, made where there is none, for one turn; others wait for its end."""
        session = await asyncio.to_thread(self._store.get_or_create, root, name)
        async with self._alone(session):
            yield await asyncio.to_thread(self._talk, root, name)

    def _talk(self, root: Path, name: str) -> Talk:
        store = self._store
        session = store.get_or_create(root, name)
        state = _read_state(store.state(session))
        first = min(_first(state), session.turns)
        return Talk(session, store.turns(session, first), store.chunks(session, first), state, store.quotes(session))

    async def pinned(self, root: Path) -> str:
        """What every conversation about a repository begins with."""
        return await asyncio.to_thread(self._pinned, root)

    def _pinned(self, root: Path) -> str:
        folders, notes = self._overview(root), self._store.notes(root)
        parts = [f"Folders of this repository: {folders}"] if folders else []
        parts += ["Notes of the user:", *(f"{note.number}. {note.text}" for note in notes)] if notes else []
        return "\n".join(parts)

    @asynccontextmanager
    async def _alone(self, session: Session) -> AsyncIterator[None]:
        line = self._lines.setdefault(session.id, _Line())
        line.users += 1
        try:
            async with line.turn:
                yield
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[session.id]

    async def recall(self, talk: Talk, question: str) -> list[Recalled]:
        """Turns of this repository's sessions that bear on a question and that its prompt does not hold anyway."""
        held = {(turn.asked_at, turn.question) for turn in talk.turns_in_prompt}
        found = await self._memories.find(talk.session.root, question, IN_PROMPT, BEARS, held)
        return await self._memories.judged(talk.session.root, found)

    async def search(
        self, root: Path, query: str, most: int, since: float | None, until: float | None
    ) -> list[Recalled]:
        """The turns of a repository's sessions that bear on a query, by its index as it is."""
        found = await self._memories.find(root, query, most, since=since, until=until)
        return await self._memories.judged(root, found)

    async def note_quoted(self, recalled: Recalled, keys: Sequence[str]) -> None:
        """Note under which keys KV of a turn that was recalled is stored, so that it can be deleted."""
        blocks, source = [bytes.fromhex(key) for key in keys], recalled.memory.session_id

        def note(cancelled: Callable[[], bool]) -> None:
            if not self._store.add_quoted_blocks(source, blocks):
                self._writer.erase(blocks)

        await run_cancellable(note)

    async def add(
        self,
        talk: Talk,
        question: str,
        result: dict[str, Any],
        chunks: Sequence[Chunk],
        told: dict[str, Any],
        model: tuple[str, str],
        used: Used,
    ) -> None:
        """Keep a turn: `result` is that of `ask`, `chunks` are those that it brought in, in the order of their labels,
        `told` is what the engine says, `used` what the answer rests on. Done also where the asker
        leaves meanwhile."""
        number = talk.number
        said = [
            SaidChunk(label, number, c.path, c.start_line, c.end_line, c.scope, c.language, c.text)
            for label, c in enumerate(chunks, talk.labels + 1)
        ]
        told, names = told["conversation"], ("answer", "finish", "sources", "tokens", "timings_ms")

        def write(cancelled: Callable[[], bool]) -> None:
            commit = head_commit(talk.session.root)
            turn = Turn(number, question, asked_at=time.time(), commit=commit, **{name: result[name] for name in names})
            self._store.add_turn(talk.session, turn, said, json.dumps(told["state"]), model, used.cited, used.quotes)
            self._memories.catch_up()
            others = self._store.other_states(talk.session)
            self._writer.discard([bytes.fromhex(key) for key in told["replaced"] if not _is_in(key, others)])

        await run_cancellable(write)

    async def create(self, root: Path, name: str | None) -> dict[str, Any]:
        return (await asyncio.to_thread(self._store.create, root, name)).to_json()

    async def all_of(self, root: Path) -> dict[str, Any]:
        sessions = await asyncio.to_thread(self._store.all_of, root)
        return {"repo": str(root), "sessions": [session.to_json() for session in sessions]}

    async def show(self, root: Path, name: str) -> dict[str, Any]:
        session = await asyncio.to_thread(self._store.get, root, name)
        turns = await asyncio.to_thread(self._store.turns, session)
        state = _read_state(await asyncio.to_thread(self._store.state, session))
        return {
            **session.to_json(),
            "repo": str(root),
            "turns": [turn.to_json() for turn in turns],
            "first_turn": _first(state),
            "summary": state["summary"] if state else "",
        }

    async def fork(self, root: Path, name: str, new_name: str | None) -> dict[str, Any]:
        """A session that has said the same so far, once the turn at hand is complete."""
        async with self._alone(await asyncio.to_thread(self._store.get, root, name)):
            return (await asyncio.to_thread(self._store.fork, root, name, new_name)).to_json()

    async def close(self, root: Path, name: str) -> dict[str, Any]:
        """Give its memory to others; its KV is on disk, and loaded again when it is asked."""
        session = await asyncio.to_thread(self._store.get, root, name)
        async with self._alone(session):
            await self._forget(session)
            return (await asyncio.to_thread(self._store.close, root, name)).to_json()

    async def delete(self, root: Path, name: str) -> dict[str, Any]:
        """Delete for good, with the KV that is stored for it alone."""
        await self._delete(await asyncio.to_thread(self._store.get, root, name))
        return {"repo": str(root), "deleted": name}

    async def delete_unused(self, days: int) -> None:
        """Delete what nobody asked anything in for so many days."""
        for session in await asyncio.to_thread(self._store.unused_since, time.time() - days * _DAY_SECONDS):
            await self._delete(session)
            _log.info("deleted a session that was not used for %d days", days)

    async def add_note(self, root: Path, text: str) -> dict[str, Any]:
        return (await asyncio.to_thread(self._store.add_note, root, text)).to_json()

    async def notes(self, root: Path) -> dict[str, Any]:
        notes = await asyncio.to_thread(self._store.notes, root)
        return {"repo": str(root), "notes": [note.to_json() for note in notes]}

    async def delete_note(self, root: Path, number: int) -> dict[str, Any]:
        await asyncio.to_thread(self._store.delete_note, root, number)
        return {"repo": str(root), "deleted": number}

    async def _delete(self, session: Session) -> None:
        async with self._alone(session):
            await self._forget(session)
            deleted = await asyncio.to_thread(self._store.delete, session)
            # Blocks continue the family's number; forks may still need some.
            keys = [deleted.family.hex()] if deleted.last else _block_keys(deleted.state)
            self._writer.erase([bytes.fromhex(key) for key in keys if not _is_in(key, deleted.kept)])
            self._writer.erase(list(deleted.quoted))
        for other in await asyncio.to_thread(self._store.quoting_deleted):
            await self._unquote(other)

    async def _unquote(self, session: Session) -> None:
        """Take out of a session what it has recalled of those that are gone: what follows has to be computed anew."""
        async with self._alone(session):
            await self._forget(session)
            state = await asyncio.to_thread(self._store.unquote_deleted, session)
            others = await asyncio.to_thread(self._store.other_states, session)
            self._writer.erase([bytes.fromhex(key) for key in _block_keys(state) if not _is_in(key, others)])

    async def _forget(self, session: Session) -> None:
        """Have the engine, where there is one, give up what it holds of the session."""
        state = await asyncio.to_thread(self._store.state, session)
        if known := _read_state(state):
            conversation = {"root": session.family.hex(), "state": known, "turns": []}
            await self._engine.forget({"conversation": conversation})


def _read_state(text: str) -> dict[str, Any] | None:
    """None also for that of a kvd which kept others: the text is there."""
    state: dict[str, Any] = json.loads(text) if text else {}
    return state if state.get("format") == STATE_FORMAT else None


def _first(state: dict[str, Any] | None) -> int:
    """The first turn that is still in the prompt."""
    return int(state["first"]) if state else 1


def _chunk_json(chunk: SaidChunk) -> dict[str, Any]:
    names = ("label", "path", "start_line", "end_line", "scope", "text")
    return {name: getattr(chunk, name) for name in names}


def _block_keys(state: str) -> list[str]:
    known = _read_state(state)
    return [str(key) for _, key, *_ in known["blocks"]] if known else []


def _is_in(key: str, states: Sequence[str]) -> bool:
    return any(key in state for state in states)
