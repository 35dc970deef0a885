"""The four acts. Each returns the findings on which its claim rests; they come from the oracle, not from exit codes.

An act fails if what it shows did not happen, even if that was good luck.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from examples.publishing.clients import AptGet, ClientFailed, Dnf, missing, verify_rpm
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.demo.workers import crew
from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS, Job, Pace

SILENCE_MAX = 60.0
LINGER = 3.0
ROUNDS_MAX = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim of an act, and whether it holds."""

    is_good: bool
    text: str


def without_lock(theatre: Theatre) -> list[Finding]:
    """Act 1: four publishers without a lock; all report success, and a package is missing or readers fail."""
    theatre.board.act("Act 1: without the lock")
    findings: list[Finding] = []
    for attempt in range(1, ROUNDS_MAX + 1):
        ledger, prefix = Ledger(), f"unlocked-{attempt}/"
        names = tuple(f"naive-{attempt}{letter}" for letter in "abcd")
        jobs = theatre.jobs(prefix, names, locked=False, pace=0.05)
        attempted(ledger, jobs)
        _run(theatre, ledger, jobs)
        verdicts = {kind: theatre.judge(prefix, kind, ledger, is_sealed=False) for kind in FORMATS}
        for kind, verdict in verdicts.items():
            theatre.board.note(f"oracle, {kind}: {verdict}", "" if verdict.is_good else "red")
        reported = sum(len(entries) for entries in ledger.reported.values())
        lost = sum(len(verdict.lost) for verdict in verdicts.values())
        broken = sum(bool(verdict.problems) for verdict in verdicts.values())
        if lost or broken:
            text = f"without the lock {reported} successes were reported and {lost} packages lost"
            findings.append(Finding(True, text + (f"; {broken} repositories broken for readers" if broken else "")))
            break
    else:
        findings.append(Finding(False, f"without the lock nothing was lost in {ROUNDS_MAX} rounds: nothing was shown"))
    say(theatre, findings[-1])
    return findings


def with_lock(theatre: Theatre, ledger: Ledger) -> list[Finding]:
    """Act 2: four concurrent publishers with the lock; nothing is lost."""
    theatre.board.act("Act 2: with the lock, four jobs on both repositories")
    jobs = theatre.jobs("", ("job-1", "job-2", "job-3", "job-4"))
    attempted(ledger, jobs)
    with Reader(theatre, ledger) as reader:
        failures = _run(theatre, ledger, jobs)
    findings = (
        [Finding(not failures, "all four jobs published to both repositories")]
        if not failures
        else [Finding(False, f"{event.run} {event.repository}: {event.text}") for event in failures]
    )
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


def killed_and_paused(theatre: Theatre, ledger: Ledger) -> list[Finding]:
    """Act 3: one publisher is killed in its section; one is paused past its ttl and resumed right at its commit."""
    theatre.board.act("Act 3: one publisher is killed, another paused past its ttl")
    killed, paused, rescuer = theatre.jobs("", ("killed", "paused", "rescuer"))
    killed = replace(killed, files=killed.files[:1], pace=Pace(theatre.pace, {"apt/metadata": LINGER}))
    paused = replace(paused, files=paused.files[1:], pace=Pace(theatre.pace, {"yum/commit": LINGER}))
    attempted(ledger, (killed, paused, rescuer))
    refusals: list[Event] = []
    pruned: dict[str, tuple[int, ...]] = {}
    with Reader(theatre, ledger) as reader, crew() as hired:
        doomed, sleeper, saviour = (hired.add(job) for job in (killed, paused, rescuer))
        waiting_for = {("apt", "metadata"): doomed, ("yum", "commit"): sleeper}
        doomed.go()
        sleeper.go()
        for worker, event in hired.events(SILENCE_MAX + 60 * theatre.pace + 3 * theatre.ttl):
            theatre.note_event(ledger, worker.job, event)
            target = waiting_for.get((event.repository, event.phase))
            if target is worker and event.what is EventKind.PHASE:
                del waiting_for[event.repository, event.phase]
                if worker is doomed:
                    worker.kill()
                    theatre.board.note("killed: SIGKILL, with its version half written", "yellow")
                else:
                    worker.pause()
                    theatre.board.note("paused: SIGSTOP, its version sealed, one write from its commit", "yellow")
                if not waiting_for:
                    saviour.go()
            if worker is sleeper and event.what is EventKind.REFUSED:
                refusals.append(event)
            if worker is saviour and event.what is EventKind.PUBLISHED:
                pruned[event.repository] = event.pruned
                if event.repository == "yum":
                    theatre.board.note("paused: SIGCONT; it goes on where it was", "yellow")
                    sleeper.resume()
    findings = [
        Finding(bool(pruned.get("apt")), "the next holder cleared away what the killed one left"),
        Finding(bool(pruned.get("yum")), "the next holder took over from the paused one"),
        Finding(
            any("this run holds token" in event.text for event in refusals), "the resumed one was refused by its token"
        ),
    ]
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


def real_clients(theatre: Theatre, ledger: Ledger) -> list[Finding]:
    """The last act: apt-get and dnf install what was published; if they are not installed, it is verified in
    process."""
    theatre.board.act("Last act: real clients")
    checks: dict[str, Callable[[list[str]], str]] = {
        "apt": lambda names: _apt(theatre, names),
        "yum": lambda names: _dnf(theatre, names),
    }
    findings = []
    for kind, check in checks.items():
        names = sorted({entry.name for entry in ledger.reported[kind]})
        absent = missing(kind)
        if absent:
            verdict = theatre.judge("", kind, ledger)
            findings.append(Finding(verdict.is_good, f"{kind}: verified in process (not here: {', '.join(absent)})"))
        else:
            started = time.monotonic()
            try:
                said = check(names)
                findings.append(Finding(True, f"{said} in {time.monotonic() - started:.1f} s"))
            except (ClientFailed, OSError) as error:
                findings.append(Finding(False, f"{kind}: {error}"))
        say(theatre, findings[-1])
    return findings


def _apt(theatre: Theatre, names: list[str]) -> str:
    apt = AptGet.prepare(theatre.folder / "apt-root", f"{theatre.front.url}/apt", theatre.public_key)
    apt.update()
    apt.install(*names)
    return f"apt-get verified the index and installed {len(names)} packages"


def _dnf(theatre: Theatre, names: list[str]) -> str:
    dnf = Dnf.prepare(theatre.folder / "dnf-root", f"{theatre.front.url}/yum", theatre.public_key)
    dnf.makecache()
    dnf.install(*names)
    if shutil.which("rpmkeys"):
        for path in theatre.folder.glob("job-*.rpm"):
            verify_rpm(path, theatre.public_key, theatre.folder / f"rpm-{path.stem}")
    return f"dnf verified index and packages and installed {len(names)} packages"


def _run(theatre: Theatre, ledger: Ledger, jobs: tuple[Job, ...]) -> list[Event]:
    failures = []
    with crew() as hired:
        workers = [hired.add(job) for job in jobs]
        for worker in workers:
            worker.go()
        for worker, event in hired.events(SILENCE_MAX + 60 * theatre.pace + 3 * theatre.ttl):
            theatre.note_event(ledger, worker.job, event)
            if event.what in {EventKind.FAILED, EventKind.REFUSED}:
                failures.append(event)
    return failures


def judged(theatre: Theatre, ledger: Ledger) -> list[Finding]:
    """Return the oracle's verdicts on both repositories."""
    findings = []
    for kind in FORMATS:
        verdict = theatre.judge("", kind, ledger)
        findings.append(Finding(verdict.is_good, f"oracle, {kind}: {verdict}"))
        say(theatre, findings[-1])
    return findings


def unharmed(theatre: Theatre, reader: Reader) -> Finding:
    """Report what the reader saw meanwhile."""
    counts = ", ".join(f"{kind} {count} times" for kind, count in sorted(reader.counts.items()))
    if reader.complaints:
        finding = Finding(False, f"a reader was harmed: {reader.complaints[0]}")
    else:
        finding = Finding(
            bool(reader.counts), f"a reader read meanwhile {counts or 'never'} and met nothing but whole versions"
        )
    say(theatre, finding)
    return finding


def say(theatre: Theatre, finding: Finding) -> None:
    """Show a finding."""
    theatre.board.note(finding.text, "green" if finding.is_good else "red")
