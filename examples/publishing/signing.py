"""Keys and signatures, created and verified in process. Elsewhere a key is text (ASCII armor)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pysequoia
from openpgp.composed import KeyType, SecretKeyParamsBuilder

from examples.publishing.errors import BadSignature


def generate_key(user_id: str) -> str:
    """Create a key pair that rpm, gpg and apt all accept: ed25519, one key that certifies and signs, no subkey.

    Return the secret key. It is dated a minute back, so that a reader whose clock is slightly behind accepts its
    signatures.
    """
    builder = SecretKeyParamsBuilder().version(4).key_type(KeyType.ed25519_legacy())
    builder = builder.can_certify(True).can_sign(True).created_at(int(time.time()) - 60)
    builder = builder.primary_user_id(user_id).preferred_hash_algorithms(["sha256", "sha512"])
    return str(builder.generate().to_armored())


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with a secret key, given as ASCII armor without a password."""

    _key: pysequoia.Tsk

    @classmethod
    def from_armor(cls, secret_key: str) -> Signer:
        """Parse a secret key; ValueError if it is not one."""
        try:
            return cls(pysequoia.Tsk.from_bytes(secret_key.encode()))
        except RuntimeError as error:
            raise ValueError(f"not a secret OpenPGP key in ASCII armor: {_reason(error)}") from None

    @property
    def public_key(self) -> str:
        """Return the public key in ASCII armor."""
        return str(self._key.extract_certificate())

    def cleartext(self, text: bytes) -> bytes:
        """Sign a text so that it stays readable, as in `InRelease`."""
        return pysequoia.sign(self._key.signer(), text, mode=pysequoia.SignatureMode.CLEAR)

    def detached(self, content: bytes) -> bytes:
        """Return a detached signature in ASCII armor."""
        return pysequoia.sign(self._key.signer(), content, mode=pysequoia.SignatureMode.DETACHED)


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies signatures against one public key."""

    _certificate: pysequoia.Cert

    @classmethod
    def from_armor(cls, public_key: str) -> Verifier:
        """Parse a public key; ValueError if it is not one."""
        try:
            return cls(pysequoia.Cert.from_bytes(public_key.encode()))
        except RuntimeError as error:
            raise ValueError(f"not an OpenPGP key in ASCII armor: {_reason(error)}") from None

    def cleartext(self, signed: bytes, what: str) -> bytes:
        """Return the text of a valid cleartext signature; else raise BadSignature."""
        try:
            return pysequoia.verify(signed, store=lambda _: [self._certificate]).bytes or b""
        except RuntimeError as error:
            raise BadSignature(f"{what}: {_reason(error)}") from None

    def detached(self, content: bytes, signature: bytes, what: str) -> None:
        """Raise BadSignature unless the signature is valid."""
        try:
            parsed = pysequoia.Sig.from_bytes(signature)
            pysequoia.verify(content, store=lambda _: [self._certificate], signature=parsed)
        except RuntimeError as error:
            raise BadSignature(f"{what}: {_reason(error)}") from None


def _reason(error: RuntimeError) -> str:
    return str(error).partition("\n")[0]
