"""The operations of the API: each takes a request and its route, and returns a response.

Only this module knows what each operation does to the store. It knows neither sockets nor faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from urllib.parse import urlencode

from gcs_emulator.conditions import Conditions, conditions_of, whole_number
from gcs_emulator.errors import ApiError, json_body, xml_body
from gcs_emulator.http_messages import Answer, Request, json_answer
from gcs_emulator.listing import page
from gcs_emulator.media import content_answer
from gcs_emulator.objects import Draft, Source, Store, StoredObject, draft_of
from gcs_emulator.permissions import admit, hidden
from gcs_emulator.resources import (
    Resource,
    bucket_fields,
    bucket_resource,
    describes,
    etag,
    new_draft,
    object_resource,
    patched,
    replaced,
)
from gcs_emulator.routes import Route, is_plain, route
from gcs_emulator.uploads import Session, Sessions, chunk_of

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
COMPOSE_MAX = 32
CLIENT_CLOSED = 499


class Api:
    """The storage API over one store."""

    def __init__(self, store: Store, denied: Callable[[], Collection[str]] = tuple) -> None:
        self._store = store
        self._denied = denied
        self._sessions = Sessions()
        self._operations: Mapping[str, Callable[[Request, Route], Answer]] = {
            "bucket_insert": self._bucket_insert,
            "bucket_get": self._bucket_get,
            "bucket_list": self._bucket_list,
            "bucket_patch": self._bucket_patch,
            "bucket_delete": self._bucket_delete,
            "bucket_permissions": self._bucket_permissions,
            "list": self._list,
            "get": self._get,
            "media": self._content,
            "read": self._content,
            "insert": self._insert,
            "upload_start": self._upload_start,
            "upload_part": self._upload_part,
            "patch": self._patch,
            "update": self._update,
            "delete": self._delete,
            "copy": self._copy,
            "rewrite": self._rewrite,
            "compose": self._compose,
        }

    def route(self, request: Request) -> Route:
        """Return the operation of a request; raises ApiError if the API does not have it."""
        upload_id = request.query.get("upload_id")
        if upload_id is None:
            return route(request)
        session = self._sessions.get(upload_id)
        is_last = request.method == "PUT" and chunk_of(request.headers.get("content-range"), request.body).is_last
        kind = "insert" if is_last else "upload_part"
        return Route(kind, session.bucket, session.name)

    def answer(self, request: Request, asked: Route) -> Answer:
        """Carry out a request and return its response, which may be a refusal."""
        denied = self._denied()
        try:
            if denied:
                admit(asked.kind, denied, overwrites=self._is_there(asked))
            return self._operations[asked.kind](request, asked)
        except ApiError as error:
            return refusal(request, hidden(asked.kind, denied, error) if denied else error)

    def _is_there(self, asked: Route) -> bool:
        try:
            self._store.get(asked.bucket, asked.name)
        except ApiError:
            return False
        return True

    # buckets

    def _bucket_insert(self, request: Request, asked: Route) -> Answer:
        if not BUCKET_NAME.fullmatch(asked.bucket):
            raise ApiError(400, f"Invalid bucket name: {asked.bucket[:80]!r}")
        bucket = self._store.create_bucket(asked.bucket, bucket_fields(request.json()))
        return json_answer(bucket_resource(bucket, request.base))

    def _bucket_get(self, request: Request, asked: Route) -> Answer:
        return json_answer(bucket_resource(self._store.bucket(asked.bucket), request.base))

    def _bucket_list(self, request: Request, _: Route) -> Answer:
        prefix = request.query.get("prefix", "")
        found = [bucket for bucket in self._store.buckets() if bucket.name.startswith(prefix)]
        items = [bucket_resource(bucket, request.base) for bucket in found]
        return json_answer({"kind": "storage#buckets", **({"items": items} if items else {})})

    def _bucket_patch(self, request: Request, asked: Route) -> Answer:
        bucket = self._store.patch_bucket(asked.bucket, bucket_fields(request.json()))
        return json_answer(bucket_resource(bucket, request.base))

    def _bucket_delete(self, _: Request, asked: Route) -> Answer:
        self._store.delete_bucket(asked.bucket)
        return Answer(204)

    def _bucket_permissions(self, request: Request, asked: Route) -> Answer:
        self._store.bucket(asked.bucket)
        # every requested permission that is not denied is granted, because the server does not identify callers
        denied = self._denied()
        granted = [value for key, value in request.pairs() if key == "permissions" and value not in denied]
        return json_answer({"kind": "storage#testIamPermissionsResponse", "permissions": granted})

    # reading

    def _list(self, request: Request, asked: Route) -> Answer:
        objects = self._store.names(asked.bucket)
        found = page(objects, request.query)
        listing: Resource = {"kind": "storage#objects"}
        if found.next_token is not None:
            listing["nextPageToken"] = found.next_token
        if found.prefixes:
            listing["prefixes"] = list(found.prefixes)
        if found.names:
            listing["items"] = [object_resource(objects[name], request.base) for name in found.names]
        return json_answer(listing)

    def _found(self, request: Request, asked: Route) -> StoredObject:
        return self._store.get(asked.bucket, asked.name, conditions_of(request.query), _generation(request))

    def _get(self, request: Request, asked: Route) -> Answer:
        stored = self._found(request, asked)
        if request.headers.get("if-none-match") == etag(stored):
            return Answer(304, b"", (("ETag", etag(stored)),))
        return _shown(request, stored)

    def _content(self, request: Request, asked: Route) -> Answer:
        return content_answer(self._found(request, asked), request.headers)

    # changing

    def _insert(self, request: Request, asked: Route) -> Answer:
        if "upload_id" in request.query:
            return self._upload_part(request, asked)
        draft = new_draft(asked.content, asked.resource)
        return _shown(request, self._store.insert(asked.bucket, asked.name, draft, conditions_of(request.query)))

    def _upload_start(self, request: Request, asked: Route) -> Answer:
        conditions = conditions_of(request.query)
        self._store.judge(asked.bucket, asked.name, conditions)
        upload_id = self._sessions.start(Session(asked.bucket, asked.name, asked.resource, conditions))
        target = urlencode({"uploadType": "resumable", "name": asked.name, "upload_id": upload_id})
        location = f"{request.base}{request.path}?{target}"
        return Answer(200, b"", (("Location", location), ("X-GUploader-UploadID", upload_id)))

    def _upload_part(self, request: Request, _: Route) -> Answer:
        upload_id = request.query["upload_id"]
        if request.method == "DELETE":
            self._sessions.forget(upload_id)
            return Answer(CLIENT_CLOSED)
        session, is_whole = self._sessions.take(upload_id, chunk_of(request.headers.get("content-range"), request.body))
        if session.made is not None:
            return _shown(request, session.made)
        if not is_whole:
            known = len(session.content)
            return Answer(308, b"", (("Range", f"bytes=0-{known - 1}"),) if known else ())
        draft = new_draft(session.content, session.resource)
        stored = self._store.insert(session.bucket, session.name, draft, session.conditions)
        self._sessions.finish(upload_id, stored)
        return _shown(request, stored)

    def _patch(self, request: Request, asked: Route) -> Answer:
        changes = request.json()
        return self._changed(request, asked, lambda draft: patched(draft, changes))

    def _update(self, request: Request, asked: Route) -> Answer:
        resource = request.json()
        return self._changed(request, asked, lambda draft: replaced(draft, resource))

    def _changed(self, request: Request, asked: Route, change: Callable[[Draft], Draft]) -> Answer:
        conditions, generation = conditions_of(request.query), _generation(request)
        return _shown(request, self._store.patch(asked.bucket, asked.name, change, conditions, generation))

    def _delete(self, request: Request, asked: Route) -> Answer:
        self._store.delete(asked.bucket, asked.name, conditions_of(request.query), _generation(request))
        return Answer(204)

    def _copied(self, request: Request, asked: Route) -> StoredObject:
        def combine(found: Sequence[StoredObject]) -> Draft:
            draft = found[0].draft
            return replaced(draft, asked.resource) if describes(asked.resource) else draft

        query = request.query
        source = Source(
            asked.source_bucket,
            asked.source_name,
            whole_number(query, "sourceGeneration"),
            conditions_of(query, "ifSource"),
        )
        return self._store.make_from([source], asked.bucket, asked.name, conditions_of(query), combine)

    def _copy(self, request: Request, asked: Route) -> Answer:
        return _shown(request, self._copied(request, asked))

    def _rewrite(self, request: Request, asked: Route) -> Answer:
        stored = self._copied(request, asked)
        size = str(len(stored.draft.content))
        return json_answer(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": object_resource(stored, request.base),
            }
        )

    def _compose(self, request: Request, asked: Route) -> Answer:
        sources = _sources(asked)
        destination = asked.resource.get("destination")
        fields = destination if isinstance(destination, dict) else {}

        def combine(found: Sequence[StoredObject]) -> Draft:
            whole = draft_of(b"".join(one.draft.content for one in found), {}, {})
            components = sum(one.draft.components or 1 for one in found)
            described = replaced(whole, fields)
            return Draft(whole.content, None, whole.crc32c, described.fields, described.metadata, components)

        conditions = conditions_of(request.query)
        return _shown(request, self._store.make_from(sources, asked.bucket, asked.name, conditions, combine))


def refusal(request: Request, error: ApiError) -> Answer:
    """Return the response for an error, in the format of the API that was used."""
    if error.status == 304:
        return Answer(304)
    if is_plain(request):
        return Answer(error.status, xml_body(error), (("Content-Type", "application/xml; charset=UTF-8"),))
    return Answer(error.status, json_body(error), (("Content-Type", "application/json; charset=UTF-8"),))


def _generation(request: Request) -> int | None:
    return whole_number(request.query, "generation")


def _shown(request: Request, stored: StoredObject) -> Answer:
    return json_answer(object_resource(stored, request.base), headers=(("ETag", etag(stored)),))


def _sources(asked: Route) -> list[Source]:
    named = asked.resource.get("sourceObjects")
    if not isinstance(named, list) or not 0 < len(named) <= COMPOSE_MAX:
        raise ApiError(400, f"Between 1 and {COMPOSE_MAX} source objects are required.")
    return [_source(asked.bucket, one) for one in named]


def _source(bucket: str, named: object) -> Source:
    if not isinstance(named, dict):
        raise ApiError(400, "Invalid source object.")
    wanted = named.get("objectPreconditions", {}).get("ifGenerationMatch")
    generation = named.get("generation")
    return Source(
        bucket,
        str(named.get("name", "")),
        None if generation is None else int(generation),
        Conditions(generation_match=None if wanted is None else int(wanted)),
    )
