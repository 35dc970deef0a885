"""What can go wrong while publishing, one class for each thing the caller can do about it."""

from __future__ import annotations


class PublishingError(Exception):
    """Base of all that this pipeline raises on purpose."""


class Refused(PublishingError):  # noqa: N818 # says what happened
    """The repository or the packages are not as they must be; nothing was published, somebody has to look."""


class Superseded(PublishingError):  # noqa: N818 # says what happened
    """A later holder of the lock has been here: this run is stale, and what it did has no effect."""


class BadSignature(PublishingError):  # noqa: N818 # says what happened
    """A signature is missing, broken, or made with a key that is not trusted here."""


class BucketError(PublishingError):
    """Base of what a bucket answers instead of doing what it was asked."""


class PreconditionFailed(BucketError):  # noqa: N818 # says what happened
    """The object is not in the state the request expected; certainly nothing was done."""


class NotFound(BucketError):  # noqa: N818 # says what happened
    """There is no such object; certainly nothing was done."""


class OutcomeUnknown(BucketError):  # noqa: N818 # says what happened
    """No clear answer: the request may have been carried out, may be carried out later, or never."""
