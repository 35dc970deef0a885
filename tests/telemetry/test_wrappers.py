"""The wrappers switch telemetry on in the process that runs a task, however new it is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from prefect_lockstead import locked

    exporter = InMemorySpanExporter()
    trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    tracer = trace.get_tracer("job")

    @locked("sqlite:///locks.db#apt")
    def publish():
        tracer.start_span("publish").end()

    with tracer.start_as_current_span("job"):
        publish()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    print(sorted(spans))
    assert spans["publish"].parent == spans["lock hold apt"].context
    assert spans["lock hold apt"].parent == spans["lock acquire apt"].parent == spans["job"].context
"""


def test_a_locked_function_is_traced_in_a_fresh_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "LOCKSTEAD_TELEMETRY": "otel"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['job', 'lock acquire apt', 'lock hold apt', 'publish']"
