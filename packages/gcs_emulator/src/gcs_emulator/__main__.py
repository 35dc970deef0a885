"""The server as a program of its own: prints its address on one line and runs until it is ended."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from gcs_emulator.server import GcsServer


def main(arguments: list[str] | None = None) -> None:
    """Run the server until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="gcs-emulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: one that is free)")
    parser.add_argument("--bucket", action="append", default=[], help="a bucket to begin with; may be repeated")
    parser.add_argument("--shuffled", action="store_true", help="generations are unique but do not grow")
    wanted = parser.parse_args(arguments)
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    with GcsServer(host=wanted.host, port=wanted.port, buckets=wanted.bucket, shuffled=wanted.shuffled) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        is_over.wait()


if __name__ == "__main__":
    main()
