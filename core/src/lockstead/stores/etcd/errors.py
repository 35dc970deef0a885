"""The StoreError for each failure: of a connection, or reported by etcd's gateway; and what to do about it.

Only refusals before a proposal, or instead of applying it, are certain; every other failure is an unknown outcome. Must
not know what was asked. Source of codes and texts: etcd's `api/v3rpc/rpctypes/error.go`.
"""

from __future__ import annotations

import json
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd.encoding import Json, Request, Response

NEEDED: Final = "3.4"
"""The oldest etcd that serves the gateway's paths."""

NOT_ETCD: Final = "what answers there is not etcd (or its gateway is off); correct host and port"
NOT_HTTP: Final = f"no HTTP is spoken at {{}}: {NOT_ETCD}"
NO_TLS: Final = "etcd at {} speaks no TLS; leave tls and certificates out of the URL, or write ?tls=false"
WANTS_TLS: Final = "etcd at {} wants TLS; write ?tls=true in the URL"

_NO_SUCH_PATH: Final = "Not Found"
"""The gateway's message for an unknown path, from 3.6 on; messages of etcd itself are longer."""


class LeaseGone(Exception):  # noqa: N818 - an answer, not a failure
    """The lease of a write does not exist: certainly not applied."""


def translated(error: Exception, request: Request, member: str, bounds: Bounds, *, is_sent: bool) -> StoreError:
    """Return the StoreError for a failed connection to a member (host:port).

    is_sent: the request may have been sent, so it may have been applied.
    """
    refused = _handshake_refused(str(error).lower().replace("_", " "), member)
    if refused is not None:
        return StoreRefused(refused)
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not is_sent:
        return StoreUnavailable(f"cannot connect to etcd at {member} for {request.what}: {told}")
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(f"etcd at {member} gave no answer to {request.what} within {bounds.limit:.3g} s")
    return OutcomeUnknown(f"no clear answer from etcd at {member} to {request.what} ({told})")


def _handshake_refused(said: str, member: str) -> str | None:
    """Return what to correct if a TLS handshake failed for good."""
    if "certificate verify failed" in said:
        return (
            f"the certificate of etcd at {member} is not trusted; name its authority with ?ca=FILE, and its host "
            "as it is"
        )
    if "wrong version number" in said or "record layer failure" in said:
        return NO_TLS.format(member)
    if any(words in said for words in ("certificate required", "bad certificate", "unknown ca", "alert unknown")):
        return f"etcd at {member} wants another client certificate; name it with ?cert=FILE&key=FILE"
    return None


def is_token_spent(response: Response) -> bool:
    """Return whether the token is not valid any more: certainly not applied, so send again after a new sign-in."""
    if response.status == 200:
        return False
    return b"invalid auth token" in response.body or b"revision of auth store is old" in response.body


def answered(response: Response, request: Request) -> Json:
    """Return the body of a successful reply; raise StoreError or LeaseGone for any other."""
    body = _json(response.body)
    if response.status == 200 and isinstance(body, dict) and "header" in body:
        return body
    raise error_of(response, body, request)


def each_answered(response: Response, request: Request) -> list[Json]:
    """Return the replies in a stream that has ended, in order."""
    if response.status != 200:
        raise error_of(response, _json(response.body), request)
    answers = []
    for line in response.body.splitlines():
        body = _json(line)
        if not isinstance(body, dict) or not isinstance(body.get("result"), dict):
            raise error_of(response, body, request)
        answers.append(body["result"])
    return answers


def error_of(response: Response, body: object, request: Request) -> Exception:
    """Return the error for an unsuccessful reply."""
    code, said = error_details(body)
    what = f"{request.what} at {response.member}" if response.member else request.what
    low = said.lower()
    if not said:
        return _not_from_etcd(response.status, what)
    if "requested lease not found" in low:
        return LeaseGone(said)
    certain = _certain(code, low, said, what)
    return certain or OutcomeUnknown(f"etcd answered {what} with: {said}")


def _certain(code: int, low: str, said: str, what: str) -> StoreError | None:
    if "database space exceeded" in low:
        return StoreUnavailable(
            f"etcd is out of space and takes no writes ({what}: {said}); compact and defragment it, raise its quota, "
            "then disarm the alarm (etcdctl alarm disarm)"
        )
    if "too many requests" in low:
        return StoreUnavailable(f"etcd rejected {what} for now: {said}")
    if "invalid user id or password" in low:
        return StoreRefused("etcd refused user or password; correct them in the URL or in ETCDCTL_USER")
    if "user name is empty" in low or "user name not found" in low:
        return StoreRefused("this etcd wants a user and a password: etcd://user:password@host, or ETCDCTL_USER")
    if "invalid auth token" in low or "revision of auth store is old" in low:
        return StoreRefused(f"etcd rejects the token that it has just issued ({said}); is a proxy in between?")
    if code == 7 or "permission denied" in low:
        return StoreRefused(
            f"etcd forbids {what} to this user; grant its role read and write on the prefix "
            "(etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX)"
        )
    if code in (3, 9, 12):
        return StoreRefused(f"etcd refused {what}: {said}")
    return None


def error_details(body: object) -> tuple[int, str]:
    """Return (gRPC code, text) of an error's body; the text is empty where it is not an error of etcd's.

    The gateway up to 3.5 answers {"error": text, "code": code}, from 3.6 on {"message": text, "code": code}; inside of
    a stream the error is an object of its own.
    """
    if not isinstance(body, dict):
        return 0, ""
    error = body.get("error", body)
    if not isinstance(error, dict):
        return _code(body.get("code")), str(error)[:300]
    said = error.get("message")
    # of another server's objects some have a message, too
    if not isinstance(said, str) or not ("error" in body or "code" in error) or said == _NO_SUCH_PATH:
        return 0, ""
    return _code(error.get("grpc_code", error.get("code"))), said[:300]


def _code(said: object) -> int:
    return said if isinstance(said, int) else 0


def _not_from_etcd(status: int, what: str) -> StoreError:
    if status == 404:
        return StoreRefused(f"{what} is not known: an etcd older than {NEEDED}, or {NOT_ETCD}")
    if status in (502, 503, 504) or status == 429 or status >= 520:
        return OutcomeUnknown(f"a proxy in front of etcd answered {what} with {status}")
    if status < 500:
        return StoreRefused(f"{what} was answered with {status} and a body that is not from etcd: {NOT_ETCD}")
    return OutcomeUnknown(f"{what} was answered with {status}")


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return body[:300].decode("utf-8", "replace")
