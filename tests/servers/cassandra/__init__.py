"""A Cassandra node for tests: one small child process on loopback that starts quickly.

Maven fetches its jars (`scripts/cassandra-jars`); the lists of Java modules to export and open are Cassandra's own
(`conf/jvm17-server.options` of its source).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Self

from tests.servers.base import Server, absent, free_port, needed

ROOT: Final = Path(__file__).parents[3]
HOST: Final = "127.0.0.1"

EXPORTS: Final = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
OPENS: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)

YAML: Final = """\
cluster_name: tests
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
num_tokens: 1
initial_token: "{token}"
auto_bootstrap: false
listen_address: {host}
rpc_address: {host}
storage_port: {storage_port}
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
commitlog_sync: batch
auto_snapshot: false
paxos_variant: v2
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{seed}:{storage_port}"
"""

STRICT: Final = """\
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
credentials_validity: 0ms
permissions_validity: 0ms
roles_validity: 0ms
client_encryption_options:
  enabled: true
  optional: true
  keystore: {keystore}
  keystore_password: not-a-secret
"""

LOGBACK: Final = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss.SSS} %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


@cache
def jars() -> Path:
    """Return the folder of the server's jars, fetched if necessary; if that fails, skip or fail the test (`absent`)."""
    if shutil.which("java") is None:
        absent("there is no java on this machine")
    done = subprocess.run([str(ROOT / "scripts/cassandra-jars")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        absent(f"the Cassandra server cannot be had: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.strip())


class CassandraServer(Server):
    """One node: the first of a cluster, or one `beside` another: then on the next loopback address, with its ports.

    is_strict: it requires a password (cassandra/cassandra), checks permissions, and also offers TLS.
    """

    def __init__(
        self, directory: Path, port: int | None = None, *, is_strict: bool = False, beside: Self | None = None
    ) -> None:
        super().__init__(directory, port or (beside.port if beside is not None else None))
        self.jars = jars()
        self.certificate = directory / "certificate.pem"
        self.number: int = 1 if beside is None else beside.number + 1
        self.host = f"127.0.0.{self.number}"
        self.storage_port: int = free_port() if beside is None else beside.storage_port
        ports = {"port": self.port, "storage_port": self.storage_port}
        yaml = YAML.format(host=self.host, seed=HOST, token=self.number * 2**60, **ports)
        if is_strict:
            yaml += STRICT.format(keystore=self._make_keystore())
        (directory / "cassandra.yaml").write_text(yaml)
        (directory / "logback.xml").write_text(LOGBACK)

    def _make_keystore(self) -> Path:
        keystore, keytool = self.directory / "keystore.p12", needed("keytool")
        common = ["-keystore", str(keystore), "-storepass", "not-a-secret", "-alias", "node"]
        name = ["-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1"]
        made = [keytool, "-genkeypair", "-keyalg", "EC", "-validity", "3650", "-storetype", "PKCS12", *name, *common]
        shown = [keytool, "-exportcert", "-rfc", "-file", str(self.certificate), *common]
        for command in (made, shown):
            subprocess.run(command, check=True, capture_output=True)
        return keystore

    def command(self) -> Sequence[str]:
        """Return the command line: Java with little memory and only the first compiler, as nodes run for minutes."""
        here = self.directory
        modules = [f"--add-exports={module}=ALL-UNNAMED" for module in EXPORTS]
        modules += [f"--add-opens={module}=ALL-UNNAMED" for module in OPENS]
        settings = {
            "jdk.attach.allowAttachSelf": "true",
            "io.netty.tryReflectionSetAccessible": "true",
            "java.io.tmpdir": here,
            "logback.configurationFile": here / "logback.xml",
            "cassandra.config": (here / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": here / "data",
            "cassandra.logdir": here,
            "cassandra-foreground": "yes",
            "cassandra.superuser_setup_delay_ms": 0,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.ring_delay_ms": 0,
        }
        return [
            needed("java"),
            *("-Xms128m", "-Xmx512m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            *modules,
            f"-javaagent:{next(self.jars.glob('jamm-*.jar'))}",
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-cp", f"{self.jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def is_ready(self) -> bool:
        """Return whether it answers the first request of every driver (OPTIONS of the native protocol)."""
        try:
            with socket.create_connection((self.host, self.port), timeout=5.0) as asking:
                asking.sendall(bytes((4, 0, 0, 0, 5, 0, 0, 0, 0)))
                return len(asking.recv(9)) == 9
        except OSError:
            return False

    def stop(self) -> None:
        """Kill it: a clean shutdown takes seconds, and all answered writes are on disk already."""
        self.kill()
