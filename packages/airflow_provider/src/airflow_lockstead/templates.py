"""Rendering of a lock's templates, such that a text inserted into a URL cannot change the URL's structure.

Must not know stores, and of tasks only their rendering methods. Imported when a DAG file is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from airflow_lockstead import compat
from airflow_lockstead.spec import is_template

SAFE: Final = "/:,[]"
"""Characters of hosts and paths that do not change a URL's structure where they are inserted."""


def rendered_url(owner: Any, url: str, context: Any, jinja: Any) -> Any:
    """Render the URL of a lock; the results of expressions are percent-encoded, so that each stays within its part.

    The result of an expression at the beginning of the text is the start of the URL, so it is not encoded; neither is
    one marked `| safe`. owner: the task or notifier that renders; jinja: its environment.
    """
    if not is_template(url):
        return url
    is_first = url.lstrip().startswith("{{")

    def finalize(value: Any) -> Any:
        nonlocal is_first
        if is_first or hasattr(value, "__html__"):
            is_first = False
            return value
        return quote(str(value), safe=SAFE)

    return owner.render_template(url, context, jinja.overlay(finalize=finalize))


class RendersLock:
    """A mixin for classes with a template field `lock`. A template that cannot be rendered fails the task at once."""

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Any, jinja_env: Any, seen_oids: Any
    ) -> None:
        from jinja2 import TemplateError

        inner: Any = super()
        others = [name for name in template_fields if name != "lock"]
        try:
            if "lock" in template_fields and isinstance(url := parent.lock, str):
                parent.lock = rendered_url(self, url, context, jinja_env)
            inner._do_render_template_fields(parent, others, context, jinja_env, seen_oids)
        except TemplateError as error:
            # a retry would fail in the same way
            why = f"lockstead: a template of the lock cannot be rendered: {error}"
            raise compat.AirflowFailException(why) from error
