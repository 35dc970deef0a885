"""How many commands of `airflow` are run for a test at the cost of one start: each in a fork.

    python commands.py < [["lockstead", "list"], ...]

Says on its last line, as JSON, what each came to: exit code, standard output, standard error. Standard input is empty.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any


def run(words: list[str]) -> dict[str, Any]:
    """Run one command as the program `airflow` does."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _be(["airflow", *words])
        _pid, status = os.waitpid(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return {"code": os.waitstatus_to_exitcode(status), "out": said[0], "err": said[1]}


def _be(argv: list[str]) -> None:
    from airflow.__main__ import main

    sys.argv, code = argv, 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    from airflow.cli import cli_parser

    cli_parser.get_parser()  # what takes long is done once
    print(json.dumps([run(words) for words in asked]), flush=True)
