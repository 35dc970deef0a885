"""How the words of a lock are rendered: what a template inserts into a URL cannot change what the URL means.

Must not know stores, nor tasks but as who renders. Imported at parse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from airflow_lockstead import compat
from airflow_lockstead.spec import is_template

SAFE: Final = "/:,[]"
"""What stands in hosts and paths, and gives a URL no other meaning where it is inserted."""


def rendered_url(owner: Any, url: str, context: Any, jinja: Any) -> Any:
    """Render the URL of a lock; whatever an expression inserts is percent-encoded, so that it stays one piece of it.

    An expression that the text begins with is the beginning of the URL, and left alone, as is one marked `| safe`.
    owner: a task or notifier, which renders as ever; jinja: its environment.
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
    """A mixin of whatever has template fields, `lock` among them. What cannot be rendered fails at once."""

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
            # tried again, it would find the same
            why = f"lockstead: a template of the lock cannot be rendered: {error}"
            raise compat.AirflowFailException(why) from error
