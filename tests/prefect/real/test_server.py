"""The real Prefect that the other tests of this folder stand on does what they rely on."""

from __future__ import annotations

from prefect import flow, task

from tests.servers.prefect import PrefectServer


def test_a_flow_of_this_process_runs_against_the_server(server: PrefectServer):
    @task
    def double(number: int) -> int:
        return 2 * number

    @flow
    def doubled() -> int:
        return double.submit(21).result()

    assert doubled() == 42
