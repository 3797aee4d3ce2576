"""Results of the daemon as text."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any, TextIO

from .text import clean, clean_line, counted

__all__ = [
    "Stream",
    "clean_line",
    "index_line",
    "memory_line",
    "proposal_line",
    "source_line",
    "source_lines",
    "stats_line",
]


class Stream:
    """Writes an answer as it comes, without the blanks around it. `quiet`: writes nothing."""

    def __init__(self, out: TextIO, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._held = ""
        self.begun = False

    def write(self, text: str) -> None:
        text = self._held + clean(text)
        text = text if self.begun else text.lstrip()
        shown = text.rstrip()
        # Blanks at the end wait until something follows them.
        self._held = text[len(shown) :]
        if self._quiet or not shown:
            return
        self._out.write(shown)
        self._out.flush()
        self.begun = True

    def finish(self, result: dict[str, Any]) -> None:
        """End the answer's last line; writes the whole answer if none of it came before."""
        if not self.begun:
            self._held = ""
            self.write(str(result.get("answer", "")))
        self.break_off()

    def break_off(self) -> None:
        """Leave the line that is begun, so that what comes next stands on its own."""
        if self.begun:
            self._out.write("\n")
            self._out.flush()


def proposal_line(proposal: dict[str, Any]) -> str:
    """What the model proposes, and how it is done by hand: `remember "...": kvd notes add '...'`"""
    note = clean_line(str(proposal["note"]))
    by_hand = f"kvd notes add {shlex.quote(note)}" if proposal["call"] == "remember" else "kvd notes delete NUMBER"
    return f'{proposal["call"]} "{note}": {by_hand}'


def source_line(source: dict[str, Any]) -> str:
    """`path:first-last  scope`"""
    place = f"{source['path']}:{source['start_line']}-{source['end_line']}"
    return clean_line(f"{place}  {source['symbol']}").rstrip()


def source_lines(result: dict[str, Any]) -> list[str]:
    """The list of sources and of earlier turns, those that the answer cites with a `*`."""
    found = [*((source, source_line(source)) for source in result["sources"])]
    found += [(memory, f"memory  {memory_line(memory)}") for memory in result["memories"]]
    return ["", "Sources:", *(f"  {'*' if it['cited'] else ' '} {line}" for it, line in found)] if found else []


def memory_line(memory: dict[str, Any]) -> str:
    """`session, turn 3, 2026-11-24`"""
    day = datetime.fromtimestamp(memory["asked_at"]).date().isoformat()
    changed = " (the code has changed since)" if memory["stale"] else ""
    return clean_line(f"{memory['session']}, turn {memory['turn']}, {day}{changed}")


def stats_line(result: dict[str, Any]) -> str:
    """What was recalled, where it came from, how soon the answer began, and which model gave it."""
    tokens, times = result["tokens"], result["timings_ms"]
    memory = tokens["resident"] + tokens["reused_hot"]
    parts = [
        f"{count:,} {how}"
        for count, how in (
            (memory, "from memory"),
            (tokens["reused_cold"], "from disk"),
            (tokens["recomputed"] + tokens["prefilled"], "computed"),
        )
        if count
    ]
    detail = f" ({', '.join(parts)})" if parts else ""
    loaded = f", not counting {times['model_load'] / 1000:.1f} s to load the model" if times["model_load"] else ""
    first = f"first word after {times['ttft'] / 1000:.1f} s"
    cut = f" · cut off at {counted(tokens['generated'], 'token')}" if result["finish"] == "length" else ""
    model = f" · {clean_line(result['model'])}" if result["model"] else ""
    return f"{counted(tokens['recalled'], 'token')} of code recalled{detail} · {first}{loaded}{cut}{model}"


def index_line(summary: dict[str, Any]) -> str:
    """One line about a run of the indexer."""
    done = [f"{summary[kind]:,} {kind}" for kind in ("added", "changed", "deleted", "unchanged") if summary[kind]]
    line = f"indexed {summary['repo']}: {counted(summary['files'], 'file')}, {counted(summary['chunks'], 'chunk')}"
    line += f" ({', '.join(done)})" if done else ""
    if summary["by_lines"]:
        line += f", {summary['by_lines']:,} cut by lines for want of a grammar"
    skipped = summary["skipped"]
    if skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
        line += f", skipped {sum(skipped.values()):,} ({reasons})"
    line += f", in {summary['seconds']:.1f} s"
    if summary["pending_vectors"]:
        line += f"; {counted(summary['pending_vectors'], 'vector')} to come"
    return clean_line(line + (f"; made anew: {summary['rebuilt']}" if summary["rebuilt"] else ""))
