"""Output of findings: one line each for people, one JSON object for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from lockstead.cli.exits import plain
from lockstead.stores.examination import Finding, Severity

_COLOURS: Final = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "yellow",
    Severity.FAILURE: "red",
}


def line(finding: Finding, *, colour: bool) -> str:
    """Return a finding as one line; colour: with its severity in colour."""
    severity = f"{finding.severity.value:<8}"
    if colour:
        severity = click.style(severity, fg=_COLOURS[finding.severity])
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return severity + plain(f"{finding.text}{remedy}")


def summary(findings: Sequence[Finding], guarantee: str) -> str:
    """Return the last line: whether locks work here, and the guarantee."""
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    told = [
        f"{count} {severity.value}{'' if count == 1 else 's'}"
        for severity, count in counts.items()
        if count and severity is not Severity.OK
    ]
    also = f" ({', '.join(told)})" if told else ""
    if is_usable(findings):
        return f"usable{also}; guarantee: {guarantee}"
    return f"not usable{also}"


def is_usable(findings: Sequence[Finding]) -> bool:
    """Return whether locks work, that is, no failure was found."""
    return all(finding.severity is not Severity.FAILURE for finding in findings)


def document(store: str, guarantee: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON document. store is the printable URL."""
    return {
        "store": store,
        "is_usable": is_usable(findings),
        "guarantee": guarantee,
        "findings": [
            {
                "check": finding.check,
                "severity": finding.severity.value,
                "text": finding.text,
                "remedy": finding.remedy,
                "figures": dict(finding.figures),
            }
            for finding in findings
        ],
    }
