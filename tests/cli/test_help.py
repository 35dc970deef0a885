"""The help: every example in it works. The completion: the shells' own machinery returns the words. The start:
quick."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import click
import pytest

from lockstead.cli.main import COMMANDS, LazyCommand, cli
from lockstead.stores.url import parse_lock
from lockstead.values import LeaseTicket
from tests.cli.shell import PROGRAM, Shell


def loaded(name: str) -> click.Command:
    """Return a subcommand as it is."""
    found = cli.commands[name]
    return found.load() if isinstance(found, LazyCommand) else found


def examples(name: str) -> list[str]:
    """Return the command lines that the help of a subcommand shows."""
    return examples_in(loaded(name).epilog or "")


def examples_in(text: str) -> list[str]:
    return [line.strip() for line in text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()]


EXAMPLES = [(name, line) for name in sorted(cli.commands) for line in examples(name)]
RUN_HERE = [(name, line) for name, line in EXAMPLES if name != "top"]
"""`top` needs a terminal: see `test_top`."""

HELD = 'ticket=$(lockstead acquire "$url" 2>/dev/null); echo "$ticket" > ticket; '
"""The state before an example: here a lock that another process holds, and its ticket."""

SEMAPHORE = 'lockstead run -n 3 "$url" -- true 2>/dev/null; '
TOKEN = "umask 077; openssl rand -hex 32 > token; "
BEFORE = {"renew": HELD, "release": HELD, "break": HELD, "permits": SEMAPHORE, "dashboard": TOKEN}

SERVES = ("dashboard", "reap")
"""Commands that serve until they are stopped."""


def serves(script: str, folder: Path, environment: dict[str, str]) -> None:
    """Start a command that serves, wait for the line that says where, and stop it."""
    with subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        try:
            said = list(takewhile(lambda line: " is at http://127.0.0.1:" not in line, process.stderr))
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(30) == 0, (said, rest)
        finally:
            process.kill()
    assert "Traceback" not in rest


def test_every_subcommand_has_examples_and_exit_codes() -> None:
    assert set(COMMANDS) <= {name for name, _line in EXAMPLES}
    without = [name for name in COMMANDS if "Exit codes:" not in (loaded(name).epilog or "")]
    assert without == ["completion"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_subcommands_names_each_as_it_names_itself(name: str) -> None:
    command = loaded(name)
    assert command.name == name
    assert (command.help or "").strip().partition("\n")[0].endswith((".", "lost."))


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("name", "line"), RUN_HERE, ids=[f"{name}-{n}" for n, (name, _) in enumerate(RUN_HERE)])
def test_the_example_in_the_help_works(name: str, line: str, tmp_path: Path) -> None:
    for script in ("publish.sh", "reindex"):
        (tmp_path / script).write_text('#!/bin/sh\ntest -n "$LOCKSTEAD_TOKEN"\n')
        (tmp_path / script).chmod(0o755)
    (tmp_path / "Makefile").write_text("nightly:\n\ttrue\n")
    if "make " in line and shutil.which("make") is None:
        pytest.skip("make is not installed")
    url = next((word for word in line.split() if "://" in word), "sqlite:///locks.db#nightly")
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "url": url}
    environment.setdefault("USER", "somebody")
    if name in SERVES:
        serves(f"set -eu; {BEFORE.get(name, '')}exec {line} --listen 127.0.0.1:0", tmp_path, environment)
        return
    done = subprocess.run(
        ["bash", "-c", f"set -eu; {BEFORE.get(name, '')}{line}"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_help_fits_a_terminal_of_80_columns(name: str) -> None:
    command = loaded(name) if name else cli
    context = click.Context(command, info_name=f"lockstead {name}".strip(), terminal_width=80, max_content_width=100)
    assert [line for line in command.get_help(context).splitlines() if len(line) > 80] == []


def test_lockstead_alone_shows_the_whole_help(files: Shell) -> None:
    alone, asked = files.run(), files.run("--help")
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == asked.out
    assert alone.out.count("\n") > len(COMMANDS)


def test_the_help_shows_what_a_url_is_and_each_can_be_one() -> None:
    shown = re.findall(r"\w+://\S+#apt", cli.epilog or "")
    assert {parse_lock(url).key for url in shown} == {"apt"}
    assert {url.partition(":")[0] for url in shown} > {"sqlite", "postgresql", "redis", "gs"}
    # both examples name commands that there are
    assert {line.split()[1] for line in examples_in(cli.epilog or "")} == {"run", "inspect"} <= set(COMMANDS)


# --- completion -----------------------------------------------------------------------------------------------------


def completed_by_bash(*words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    script = """
        eval "$(lockstead completion bash)"
        complete -p lockstead >&2
        COMP_WORDS=(lockstead "$@"); COMP_CWORD=$#
        _lockstead_completion lockstead
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        env={**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert "-F _lockstead_completion lockstead" in done.stderr
    return done.stdout.split()


def test_bash_completes_the_subcommands() -> None:
    assert completed_by_bash("") == sorted(cli.commands)
    assert completed_by_bash("re") == ["reap", "release", "renew"]


def test_bash_completes_options_and_shells() -> None:
    assert {"--reason", "--by", "--now", "--yes", "--json"} <= set(completed_by_bash("break", "--"))
    assert completed_by_bash("completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize(("shell", "says"), [("zsh", "#compdef lockstead"), ("fish", "--command lockstead")])
def test_the_zsh_and_fish_scripts_get_completions(files: Shell, shell: str, says: str) -> None:
    done = files.run("completion", shell)
    assert done.code == 0
    assert says in done.out
    assert f"_LOCKSTEAD_COMPLETE={shell}_complete" in done.out
    files.environment = {"_LOCKSTEAD_COMPLETE": f"{shell}_complete", "COMP_WORDS": "lockstead ren", "COMP_CWORD": "1"}
    if shell == "fish":
        files.environment["COMP_CWORD"] = "ren"
    asked = files.run()
    assert (asked.code, asked.err) == (0, "")
    assert "renew" in asked.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=done.out, text=True, check=True, timeout=60)


# --- the start ------------------------------------------------------------------------------------------------------


def imported(*words: str) -> set[str]:
    """Return the modules that a command line has imported."""
    script = (
        "import sys; from lockstead.cli.main import call; code = call(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    return set(done.stderr.splitlines()[-1].split())


HEAVY = {"pendulum", "rich", "httpcore", "asyncio", "google", "ssl", "subprocess", "email"}


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["inspect", "--help"], ["completion", "zsh"]])
def test_what_asks_no_store_imports_no_engine(words: list[str]) -> None:
    found = imported(*words)
    assert found & HEAVY <= {"subprocess"} if words[0] == "completion" else not found & HEAVY
    assert not {"lockstead.runtime.engine", "lockstead.cli.run", "sqlite3"} & found


def test_a_look_imports_neither_tables_nor_calendars(files: Shell) -> None:
    files.hold()
    for words in (["inspect", files.url()], ["inspect", "--json", files.url()], ["list", files.store]):
        assert not imported(*words) & HEAVY
    assert "lockstead.cli.run" not in imported("inspect", files.url())


# --- words that are wrong -------------------------------------------------------------------------------------------


TICKET = str(LeaseTicket("sqlite:////tmp/absent.db", "apt", "ci/7/0", "1", 60.0))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["inspect"], "Missing argument 'URL'"),
        (["inspect", "sqlite:///x.db"], "names no key"),
        (["inspect", "memory:#apt"], "a memory: store is private to one process"),
        (["inspect", "nowhere://x#apt"], "no store has the scheme 'nowhere'"),
        (["inspect", "sqlite:///x.db?colour=red#apt"], "unknown setting 'colour'"),
        (["inspect", "sqlite:///x.db?colour=red#apt"], "renew_every, request_timeout, ttl\n"),
        (["inspect", "redis://h/0?colour=red#apt"], "request_timeout, ttl; and of redis: "),
        (["list", "sqlite:///x.db?tll=5m"], "unknown setting 'tll' in the URL, did you mean 'ttl'?\n"),
        (["inspect", "redis://h/0?ssl_ca_cert=x#apt"], "'ssl_ca_cert' in the URL, did you mean 'ssl_ca_certs'?\n"),
        (["history", "sqlite:///x.db?ttl=soon"], "ttl 'soon' is not a duration"),
        (["list", "memory:"], "a memory: store is private to one process"),
        (["wait", "--timeout", "soon", "sqlite:///x.db#apt"], "timeout 'soon' is not a duration"),
        (["acquire", "--ttl", "0.5", "sqlite:///x.db#apt"], "at least 1 s"),
        (["acquire", "--label", "odd", "sqlite:///x.db#apt"], "K=V"),
        (["acquire", "--timeout", "-1", "sqlite:///x.db#apt"], "--timeout must be a finite, non-negative duration"),
        (["run"], "Missing argument 'URL'"),
        (["run", "sqlite:///x.db#apt"], "the command is missing"),
        (["run", "--", "true"], "the lock's URL is missing"),
        (["run", "--timeout", "0", "--", "make", "publish"], "the lock's URL is missing"),
        (
            ["release", "--drain", "soon", "--store", "sqlite:////tmp/absent.db", TICKET],
            "drain 'soon' is not a duration",
        ),
        (["list", "--json", "--format", "table", "sqlite:///x.db"], "--json and --format table exclude each other"),
        (["list", "--lock-label", "a=b", "sqlite:///x.db"], "--lock-label belongs to --format openmetrics"),
        (["list", "--format", "openmetrics", "--lock-label", "=b", "sqlite:///x.db"], "a lock label is PATTERN=NAME"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["run", "sqlite:///x.db#apt", "ls", "-l"], "put '--' before the command"),
        (["run", "sqlite:///x.db#apt", "sleep", "-v", "1"], "put '--' before the command"),
        (["run", "--timeot", "0", "sqlite:///x.db#apt", "--", "ls", "-l"], "No such option '--timeot'"),
        (["run", "-E", "256", "sqlite:///x.db#apt", "--", "true"], "256 is not in the range 0<=x<=255"),
    ],
)
def test_64_wrong_words(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lockstead.cli.main import call

    monkeypatch.chdir(tmp_path)
    assert call(words) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err
    assert list(tmp_path.iterdir()) == []


def test_h22_no_failure_shows_a_password(files: Shell) -> None:
    for words in (
        ["inspect", "nonsense://anna:hunter2@host/0?ttl=5m#apt"],
        ["list", "nonsense://anna:hunter2@host/0"],
        ["acquire", "gs://anna:hunter2@b/locks/apt", "--timeout", "0"],
    ):
        done = files.run(*words)
        assert done.code in (64, 69)
        assert (done.out, done.err.count("\n")) == ("", 1)
        assert "hunter2" not in done.err


def test_69_a_file_that_cannot_be(files: Shell) -> None:
    files.run("list", "sqlite:///absent/locks.db").fails(69, "there is no folder")
    (files.where / "locks.db").write_text("no database, but long enough to be looked at as one" * 100)
    for words in (["list", files.store], ["inspect", files.url()], ["history", files.store]):
        files.run(*words).fails(69, "locks.db")
