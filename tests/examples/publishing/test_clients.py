"""The real apt-get, dnf and rpm judge what was published; and they do refuse what must be refused."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.publishing.build import Recipe, build
from examples.publishing.clients import AptGet, ClientFailed, Dnf, verify_rpm
from examples.publishing.front import Front
from examples.publishing.gcs import GcsBucket
from examples.publishing.layout import Layout
from examples.publishing.signing import Signer
from gcs_emulator import GcsServer
from tests.examples.publishing.world import Shelf, World

pytestmark = pytest.mark.server

LAYOUTS = {kind: Layout(f"{kind}/") for kind in ("apt", "yum")}


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(buckets=["b"]) as server:
        yield server


@pytest.fixture
def bucket(server: GcsServer) -> Iterator[GcsBucket]:
    bucket = GcsBucket("b", endpoint=server.url)
    yield bucket
    bucket.close()


@pytest.fixture(params=["redirected", "through the front"])
def front(request: pytest.FixtureRequest, bucket: GcsBucket) -> Iterator[Front]:
    objects_url = bucket.public_url if request.param == "redirected" else None
    with Front(bucket, LAYOUTS, objects_url=objects_url) as front:
        yield front


@pytest.fixture
def direct(bucket: GcsBucket) -> Iterator[Front]:
    with Front(bucket, LAYOUTS, objects_url=bucket.public_url) as front:
        yield front


def world_of(kind: str, bucket: GcsBucket, shelf: Shelf) -> World:
    return World(bucket, kind, shelf, prefix=f"{kind}/", pause=time.sleep)


@pytest.mark.usefixtures("apt_get")
def test_apt_get_installs_what_was_published(bucket: GcsBucket, front: Front, shelf: Shelf, tmp_path: Path) -> None:
    world = world_of("apt", bucket, shelf)
    world.publish(1, "seed", "alpha")
    apt = AptGet.prepare(tmp_path / "apt", f"{front.url}/apt", world.shelf_public_key())
    apt.update()
    apt.install("alpha")
    assert (tmp_path / "apt/usr/share/alpha/1.0").read_text() == "hello\n"
    world.publish(2, "alpha-2")
    apt.update()
    assert apt.available() == {"seed": "1.0", "alpha": "2.0"}
    apt.install("alpha")
    assert (tmp_path / "apt/usr/share/alpha/2.0").exists()


@pytest.mark.usefixtures("dnf")
def test_dnf_installs_what_was_published(bucket: GcsBucket, front: Front, shelf: Shelf, tmp_path: Path) -> None:
    world = world_of("yum", bucket, shelf)
    world.publish(1, "seed", "alpha")
    dnf = Dnf.prepare(tmp_path / "dnf", f"{front.url}/yum", world.shelf_public_key())
    dnf.makecache()
    dnf.install("alpha")
    assert (tmp_path / "dnf/system/usr/share/alpha/1.0").read_text() == "hello\n"
    world.publish(2, "alpha-2")
    assert dnf.available() == ("alpha-1.0-1", "alpha-2.0-1", "seed-1.0-1")
    dnf.install("alpha")
    assert (tmp_path / "dnf/system/usr/share/alpha/2.0").exists()


@pytest.mark.usefixtures("apt_get")
def test_apt_get_takes_the_content_back_after_a_rollback(
    bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path
) -> None:
    world = world_of("apt", bucket, shelf)
    apt = AptGet.prepare(tmp_path / "apt", f"{direct.url}/apt", world.shelf_public_key())
    world.publish(1, "seed")
    world.publish(2, "alpha")
    apt.update()
    world.publish(3, restore=1)
    apt.update()
    assert apt.available() == {"seed": "1.0"}


@pytest.mark.usefixtures("apt_get")
def test_apt_get_refuses_a_strangers_signature(bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path) -> None:
    world_of("apt", bucket, shelf).publish(1, "seed", key=shelf.strangers_key)
    apt = AptGet.prepare(tmp_path / "apt", f"{direct.url}/apt", Signer.from_armor(shelf.key).public_key)
    with pytest.raises(ClientFailed, match=r"(?i)signature|NO_PUBKEY"):
        apt.update()


@pytest.mark.usefixtures("dnf")
def test_dnf_refuses_a_strangers_signature(bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path) -> None:
    world_of("yum", bucket, shelf).publish(1, "seed", key=shelf.strangers_key)
    dnf = Dnf.prepare(tmp_path / "dnf", f"{direct.url}/yum", Signer.from_armor(shelf.key).public_key)
    with pytest.raises(ClientFailed, match=r"(?i)signature|gpg"):
        dnf.makecache()


def flip(bucket: GcsBucket, name: str) -> None:
    stat, content = bucket.stat(name), bytearray(bucket.read(name))
    content[len(content) // 2] ^= 1
    bucket.replace(name, bytes(content), generation=stat.generation)


@pytest.mark.usefixtures("apt_get")
def test_apt_get_and_the_oracle_refuse_one_flipped_byte(
    bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path
) -> None:
    world = world_of("apt", bucket, shelf)
    world.publish(1, "seed")
    apt = AptGet.prepare(tmp_path / "apt", f"{direct.url}/apt", world.shelf_public_key())
    apt.update()
    flip(bucket, "apt/versions/1/pool/main/s/seed/seed_1.0_all.deb")
    with pytest.raises(ClientFailed, match=r"(?i)hash sum mismatch"):
        apt.install("seed")
    assert not world.judge().is_good


@pytest.mark.usefixtures("dnf")
def test_dnf_and_the_oracle_refuse_one_flipped_byte(
    bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path
) -> None:
    world = world_of("yum", bucket, shelf)
    world.publish(1, "seed")
    dnf = Dnf.prepare(tmp_path / "dnf", f"{direct.url}/yum", world.shelf_public_key())
    dnf.makecache()
    flip(bucket, "yum/versions/1/packages/s/seed-1.0-1.noarch.rpm")
    with pytest.raises(ClientFailed, match=r"(?i)checksum|download"):
        dnf.install("seed")
    assert not world.judge().is_good


@pytest.mark.usefixtures("dnf")
def test_rpm_refuses_an_unsigned_package_and_a_strangers(shelf: Shelf, tmp_path: Path) -> None:
    public_key = Signer.from_armor(shelf.key).public_key
    verify_rpm(shelf.paths["rpm", "seed"], public_key, tmp_path / "1")
    with pytest.raises(ClientFailed, match="NOT OK"):
        verify_rpm(build(Recipe("unsigned"), "rpm", tmp_path), public_key, tmp_path / "2")
    with pytest.raises(ClientFailed, match="NOT OK"):
        verify_rpm(shelf.paths["rpm", "seed"], Signer.from_armor(shelf.strangers_key).public_key, tmp_path / "3")


@pytest.mark.usefixtures("apt_get", "dnf")
@pytest.mark.parametrize("kind", ["apt", "yum"])
def test_clients_never_stumble_over_a_flip(
    kind: str, bucket: GcsBucket, direct: Front, shelf: Shelf, tmp_path: Path
) -> None:
    """Versions change as fast as they can while a client updates again and again."""
    # Without the wait for a later second: this is about flips, and there cannot be too many of them.
    world = World(bucket, kind, shelf, prefix=f"{kind}/", keep=20)
    world.publish(1, "seed")
    world.publish(2, "alpha")
    is_over = threading.Event()
    published: list[int] = []

    def keep_publishing() -> None:
        for token in itertools.count(3):
            published.append(world.publish(token, restore=token - 1).number)
            if is_over.wait(0.02):
                return

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        apt = AptGet.prepare(tmp_path / "apt", f"{direct.url}/apt", world.shelf_public_key())
        dnf = Dnf.prepare(tmp_path / "dnf", f"{direct.url}/yum", world.shelf_public_key())
        for _ in range(5):
            if kind == "apt":
                apt.update()
            else:
                dnf.makecache()
    finally:
        is_over.set()
        publisher.join()
    assert len(published) > 5
