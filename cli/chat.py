"""`kvd chat`: a conversation, question by question."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kvd.errors import CancelledError, KvdError, UsageError
from kvd.rpc.messages import check_text

from . import answers
from .interrupts import interrupts_raised
from .notes import note_line, note_lines
from .repository_commands import Budget, MaxTokens, Repo, Rounds, absolute, call, show_answer
from .text import counted

_HELP = """/sources    the code that the last answer rests on
/pin TEXT   note something that holds for the repository, in all conversations
/memory     the notes and their numbers, and how much was said here
/forget N   delete note N for good
/delete     delete this conversation for good
/help       this
Ctrl-C ends an answer, Ctrl-D the chat; what was said is kept (kvd chat --continue goes on with it)"""


def chat(
    repo: Repo = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Go on with this conversation, or begin it.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the conversation that was used last.")] = False,
    budget: Budget = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = None,
) -> int:
    """Talk about a repository. /help tells what else can be typed."""
    place = absolute(repo or ".")
    if go_on:
        if session is not None:
            raise UsageError("--session and --continue exclude each other", hint="kvd chat --continue")
        session = _last(place)
    params = {"repo": place, "budget": budget, "max_tokens": max_tokens, "memory": None, "rounds": rounds}
    return _Chat(params, session).run()


def _last(repo: str) -> str:
    sessions = call("session/list", {"repo": repo})["sessions"]
    if not sessions:
        raise UsageError("there is no conversation to go on with", hint="kvd chat")
    return str(sessions[0]["name"])


class _Chat:
    """`params` are those of each question; without a `session` the first one begins it."""

    def __init__(self, params: dict[str, Any], session: str | None) -> None:
        self._params, self._session = params, session
        self._terminal = sys.stdin.isatty()
        self._sources: list[str] = []
        self._tokens = 0
        """Of the conversation, after the last answer; 0 before the first."""
        self._status = 0

    def run(self) -> int:
        """Until the end of input. The exit status is that of the last question that failed, where nobody types."""
        if self._terminal:
            self._edit_lines()
            typer.echo(f"kvd: {self._session or 'a new conversation'}; /help tells more", err=True)
        while (line := self._read()) is not None:
            if line.strip() and not self._handle(line.strip()):
                break
        return 0 if self._terminal else self._status

    def _edit_lines(self) -> None:
        """Line editing, and what was asked in this conversation to go back to. Nothing of it is written to a file."""
        import readline

        if self._session is not None:
            known = {session["name"] for session in call("session/list", {"repo": self._params["repo"]})["sessions"]}
            if self._session in known:
                turns = call("session/show", {"repo": self._params["repo"], "name": self._session})["turns"]
                for turn in turns:
                    readline.add_history(turn["question"])

    def _read(self) -> str | None:
        """The next line; None at the end."""
        if not self._terminal:
            return sys.stdin.readline() or None
        while True:
            try:
                with interrupts_raised():
                    return input("> ")
            except EOFError:
                typer.echo("")
                return None
            except KeyboardInterrupt:
                # The line that was begun is given up.
                typer.echo("")

    def _handle(self, line: str) -> bool:
        """Do what a line says; false when the chat is over."""
        if not line.startswith("/"):
            self._ask(line)
            return True
        name, _, rest = line.partition(" ")
        try:
            if name == "/delete":
                return not self._delete()
            self._do(name, rest.strip())
        except KvdError as error:
            self._fail(error)
        return True

    def _do(self, name: str, rest: str) -> None:
        repo = self._params["repo"]
        if name == "/sources":
            typer.echo("\n".join(self._sources) or "no sources yet")
        elif name == "/pin":
            typer.echo(note_line(call("note/add", {"repo": repo, "text": check_text("note", rest)})))
        elif name == "/memory":
            self._show_memory()
        elif name == "/forget" and rest.isdecimal():
            call("note/delete", {"repo": repo, "number": int(rest)})
            typer.echo(f"note {int(rest)} is deleted")
        else:
            typer.echo(_HELP)

    def _show_memory(self) -> None:
        for line in note_lines(call("note/list", {"repo": self._params["repo"]})):
            typer.echo(line)
        if self._session is not None:
            turns = call("session/show", {"repo": self._params["repo"], "name": self._session})["turns"]
            tokens = f", {counted(self._tokens, 'token')}" if self._tokens else ""
            typer.echo(f"{self._session}: {counted(len(turns), 'turn')}{tokens}")

    def _ask(self, question: str) -> None:
        stream = answers.Stream(sys.stdout, quiet=False)
        try:
            check_text("question", question)
            if self._session is None:
                self._session = str(call("session/create", {"repo": self._params["repo"], "name": None})["name"])
            result = call("ask", {**self._params, "question": question, "session": self._session}, stream)
        except KvdError as error:
            self._fail(error)
            return
        show_answer(stream, result)
        self._sources = answers.source_lines(result)[2:]
        self._tokens = result["conversation"]["tokens"] if result["conversation"] else 0
        for proposal in result.get("proposals", ()):
            self._propose(proposal)
        typer.echo("")

    def _propose(self, proposal: dict[str, str]) -> None:
        """What the model would have written down, or dropped; only who is at a terminal can say yes."""
        by_hand = f"kvd: the model proposes to {answers.proposal_line(proposal)}"
        if not self._terminal or proposal["call"] != "remember":
            typer.echo(by_hand, err=True)
            return
        typer.echo(f'the model proposes to remember "{answers.clean_line(proposal["note"])}": y/N')
        if (self._read() or "").strip().lower() not in ("y", "yes"):
            return
        try:
            typer.echo(note_line(call("note/add", {"repo": self._params["repo"], "text": proposal["note"]})))
        except KvdError as error:
            self._fail(error)

    def _fail(self, error: KvdError) -> None:
        """An answer that was not to be is not the end of the conversation."""
        if isinstance(error, CancelledError) and not self._terminal:
            raise error
        self._status = error.exit_code
        typer.echo(f"kvd: {answers.clean_line(error.message)}", err=True)
        if error.hint:
            typer.echo(f"hint: {answers.clean_line(error.hint)}", err=True)

    def _delete(self) -> bool:
        """Delete the conversation, if that is what is wanted; whether it is gone."""
        if self._session is None:
            typer.echo("nothing was said yet")
            return False
        typer.echo(f"delete {self._session} for good? y/n")
        if (self._read() or "").strip().lower() not in ("y", "yes"):
            return False
        call("session/delete", {"repo": self._params["repo"], "name": self._session})
        typer.echo("deleted")
        return True
