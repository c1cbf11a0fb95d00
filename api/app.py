"""The WSGI application."""

from __future__ import annotations

import logging
from typing import Final

from flask import Flask, Response, request

from api import requests
from api.bodies import LARGEST_BODY
from api.keys import Doorkeeper, presented
from api.operations import OPERATIONS
from api.problems import answer
from api.routes import Routes
from api.services import Services

logger: Final = logging.getLogger("voxfleet.api")

_OPEN: Final = frozenset(operation.id for operation in OPERATIONS if operation.open)


def create_app(services: Services) -> Flask:
    """Return the application over `services`."""
    app = Flask("api", static_folder=None)
    # One more than we take: of a chunked body werkzeug reads so much, and drops the rest without a word.
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY + 1
    # A redirect to a tidier address would be an HTML page.
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True

    routes = Routes(services)
    for operation in OPERATIONS:
        app.add_url_rule(
            operation.path,
            operation.id,
            getattr(routes, operation.id),
            methods=[operation.method],
            provide_automatic_options=False,
        )

    doorkeeper = Doorkeeper(services.keys)

    @app.before_request
    def _admit() -> None:
        requests.begin()
        if request.endpoint is not None and request.endpoint not in _OPEN:
            requests.set_tenant(doorkeeper.tenant(presented(request.headers)))

    @app.after_request
    def _count(response: Response) -> Response:
        routes.metrics.answered(
            route=request.url_rule.rule if request.url_rule else "-",
            method=request.method if request.endpoint else "-",
            status=response.status_code,
            seconds=requests.milliseconds() / 1000,
        )
        return response

    app.register_error_handler(Exception, answer)
    app.after_request(_finish)
    return app


def _finish(response: Response) -> Response:
    response.headers["X-Request-Id"] = requests.request_id()
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-store")
    # The template of the route, never what stood in its place; no query, no key, no body.
    logger.info(
        "%s %s %d %.1f ms request=%s tenant=%s",
        request.method if request.endpoint else "-",
        request.url_rule.rule if request.url_rule else "-",
        response.status_code,
        requests.milliseconds(),
        requests.request_id(),
        requests.tenant_or_dash(),
    )
    return response
