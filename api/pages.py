"""Pages for people: each needs nothing but itself, and its policy lets it load nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from flask import Response, render_template

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
h2 code { background: #eef; padding: 0.1em 0.4em; }
table { border-collapse: collapse; width: 100%; }
td, th { border: 1px solid #ccc; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
details { margin: 0.5rem 0; } pre { overflow: auto; background: #f6f6f6; padding: 0.8rem; }
@media (prefers-color-scheme: dark) {
  body { background: #111; color: #ddd; } a { color: #9cf; } pre, h2 code { background: #222; }
}
"""


def docs(description: Mapping[str, Any]) -> Response:
    """Return the page of an OpenAPI description."""
    page = render_template("docs.html", api=description, style=_STYLE)
    headers = {"Content-Security-Policy": _policy(_STYLE), "Cache-Control": "public, max-age=300"}
    return Response(page, 200, headers, content_type="text/html; charset=utf-8")


def _policy(style: str) -> str:
    """Return the policy (https://www.w3.org/TR/CSP3/) that allows `style`, by its hash, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
