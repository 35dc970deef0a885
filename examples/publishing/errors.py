"""Errors, one class for each different reaction of the caller."""

from __future__ import annotations


class PublishingError(Exception):
    """Base of all errors that this pipeline raises on purpose."""


class Refused(PublishingError):  # noqa: N818 # says what happened
    """The repository or the packages are not valid; nothing was published, and a person must look."""


class Superseded(PublishingError):  # noqa: N818 # says what happened
    """A later holder of the lock has published or fenced: this run is stale, and its work has no effect."""


class BadSignature(PublishingError):  # noqa: N818 # says what happened
    """A signature is missing, invalid, or made with a key that is not trusted."""


class BucketError(PublishingError):
    """Base of the errors of a bucket."""


class PreconditionFailed(BucketError):  # noqa: N818 # says what happened
    """The object is not in the expected state; nothing was done."""


class NotFound(BucketError):  # noqa: N818 # says what happened
    """The object does not exist; nothing was done."""


class OutcomeUnknown(BucketError):  # noqa: N818 # says what happened
    """No clear response: the request may have been executed, may still be, or never."""
