"""`kvd doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvd.errors import KvdError

from .text import clean_line, counted

_MARKS = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Look for what keeps kvd from working, or from working well; each line says ok or what to do."""
    from kvd.doctor.checks import examine

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            typer.echo(f"{_MARKS[finding.verdict]}  {finding.part:<10}  {clean_line(finding.text)}")
            if finding.hint:
                typer.echo(f"{'':19}{clean_line(finding.hint)}")
    faults = [finding for finding in findings if finding.verdict == "fault"]
    error = KvdError(f"{counted(len(faults), 'fault')} found", hint=faults[0].hint) if faults else None
    if as_json:
        told = {"findings": [finding.to_json() for finding in findings]}
        typer.echo(json.dumps(told | ({"error": error.to_json()} if error else {})))
        raise typer.Exit(error.exit_code if error else 0)
    if error:
        raise error
