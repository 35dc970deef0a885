"""The GraphQL queries and mutations of `tests.servers.dagster`."""

from __future__ import annotations

from typing import Final

LOADED: Final = """
query { workspaceOrError { ... on Workspace { locationEntries {
  loadStatus locationOrLoadError { ... on PythonError { message } }
} } } }
"""

LAUNCH: Final = """
mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PipelineNotFoundError { message }
  ... on InvalidSubsetError { message }
} }
"""

AGAIN: Final = """
mutation ($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on PythonError { message }
} }
"""

TERMINATE: Final = """
mutation ($run: String!, $policy: TerminateRunPolicy) { terminateRun(runId: $run, terminatePolicy: $policy) {
  __typename
  ... on TerminateRunFailure { message }
  ... on PythonError { message }
} }
"""

BACKFILL: Final = """
mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename
  ... on LaunchBackfillSuccess { backfillId }
  ... on PythonError { message }
} }
"""

RUNS: Final = """
query ($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results { runId status } } } }
"""

STATUS: Final = """
query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }
"""

EVENTS: Final = """
fragment Said on MetadataEntry {
  label
  ... on TextMetadataEntry { text }
  ... on IntMetadataEntry { intRepr }
  ... on FloatMetadataEntry { floatValue }
  ... on BoolMetadataEntry { boolValue }
  ... on PathMetadataEntry { path }
  ... on JsonMetadataEntry { jsonString }
  ... on UrlMetadataEntry { url }
}
query ($run: ID!, $cursor: String) { logsForRun(runId: $run, afterCursor: $cursor) {
  __typename
  ... on PythonError { message }
  ... on EventConnection {
    cursor hasMore
    events {
      __typename
      ... on MessageEvent { message timestamp stepKey eventType }
      ... on DisplayableEvent { metadataEntries { ...Said } }
      ... on ErrorEvent { error { message className cause { message className } } }
      ... on AssetCheckEvaluationEvent { evaluation { checkName success description } }
      ... on ExecutionStepFailureEvent { failureMetadata { metadataEntries { ...Said } } }
    }
  }
} }
"""

SENSOR_ON: Final = """
mutation ($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) {
  __typename
  ... on PythonError { message }
} }
"""

SENSOR_OFF: Final = """
mutation ($sensor: SensorSelector!) { resetSensor(sensorSelector: $sensor) {
  __typename
  ... on Sensor { sensorState { status } }
  ... on PythonError { message }
} }
"""

TICKS: Final = """
query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  __typename
  ... on PythonError { message }
  ... on Sensor { sensorState { status ticks(limit: 20) { status skipReason runIds error { message } } } }
} }
"""
