"""The description is valid, complete, and what the API does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from pydantic import BaseModel

from api import schemas
from api.app import create_app
from jobs.events import ENDINGS, event_payload
from jobs.views import job_body

from .conftest import PUBLIC_URL, World


def _conforms(value: Any, model: type[BaseModel], spec: dict[str, Any]) -> None:
    name = model.__name__
    schema = {"$ref": f"#/components/schemas/{name}", "components": spec["components"]}
    Draft202012Validator(schema).validate(value)
    # No member may be sent that is not described.
    model.model_validate(value, extra="forbid")


@pytest.fixture
def spec(world: World) -> dict[str, Any]:
    """Give the description as clients get it, without a key."""
    reply = world.client.get("/openapi.json")
    assert reply.status_code == 200
    described: dict[str, Any] = reply.get_json()
    return described


def test_it_is_valid_openapi_3_1(spec: dict[str, Any]) -> None:
    assert spec["openapi"] == "3.1.0"
    validate(spec)
    assert set(spec["webhooks"]) == set(ENDINGS.values())
    assert spec["components"]["schemas"]["JobRequest"]["additionalProperties"] is False
    assert spec["components"]["schemas"]["JobRequest"]["properties"]["input"]["maxLength"] == 2000


def test_every_route_is_described_and_every_described_route_exists(
    world: World, spec: dict[str, Any]
) -> None:
    served = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in world.client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD"}
    }
    described = {(path, method) for path, item in spec["paths"].items() for method in item}

    assert served == described


def test_real_answers_are_as_described(world: World, spec: dict[str, Any]) -> None:
    job = world.post({"input": "Hello.", "metadata": {"k": "v"}}).get_json()
    _conforms(job, schemas.JobView, spec)
    _conforms(world.get("/v1/models").get_json(), schemas.Models, spec)
    _conforms(world.get("/v1/voices").get_json(), schemas.Voices, spec)
    _conforms(world.client.get("/healthz").get_json(), schemas.Health, spec)
    _conforms(world.client.get("/readyz").get_json(), schemas.Ready, spec)

    world.complete(job["id"])
    _conforms(world.get(f"/v1/speech/jobs/{job['id']}").get_json(), schemas.JobView, spec)
    own = {"X-API-Key": world.secret}
    unwanted = world.post({"input": "Hello.", "class": "low", "deadline": 60}).get_json()
    for verb in ("cancel", "retry"):
        told = world.client.post(f"/v1/speech/jobs/{unwanted['id']}/{verb}", headers=own).get_json()
        _conforms(told, schemas.JobView, spec)
    world.fail(told["id"])
    failing = world.post({"input": "Hello."}).get_json()
    world.fail(failing["id"])
    _conforms(world.get(f"/v1/speech/jobs/{failing['id']}").get_json(), schemas.JobView, spec)


def test_errors_are_as_described(world: World, spec: dict[str, Any]) -> None:
    job = world.post({"input": "Hello."}).get_json()
    for limits in ({"tenant_max_queued": 1}, {"max_queued": 1}):
        object.__setattr__(world.services, "limits", replace(world.services.limits, **limits))
        world.client = create_app(world.services).test_client()
        refused = world.post({"input": "Hello."})
        assert refused.status_code in (429, 503)
        _conforms(refused.get_json(), schemas.ProblemView, spec)
    own = {"X-API-Key": world.secret}
    for reply in (
        world.client.post(f"/v1/speech/jobs/{job['id']}/retry", headers=own),
        world.client.post(f"/v1/speech/jobs/{job['id']}/cancel", headers=own, json={"a": 1}),
        world.post({"input": "", "seed": -1, "speed": 1}),
        world.post(b"{"),
        world.client.get("/v1/models"),
        world.get("/nothing"),
        world.post({"input": "x" * 2001}),
    ):
        _conforms(reply.get_json(), schemas.ProblemView, spec)


def test_a_webhook_is_as_described(world: World, spec: dict[str, Any]) -> None:
    body = world.post({"input": "Hello."}).get_json()
    tenant = world.keys.list()[0].tenant_id
    job = world.store.get(body["id"], tenant)

    payload = event_payload("evt_1", "speech.job.completed", job, at=job.created_at, public_url=PUBLIC_URL)

    _conforms(
        schemas.Event.model_validate_json(payload).model_dump(mode="json", by_alias=True), schemas.Event, spec
    )
    assert schemas.Event.model_validate_json(payload, extra="forbid").data.id == job.id
    assert job_body(job, public_url=PUBLIC_URL) == body


def test_the_page_needs_nothing_but_itself(world: World) -> None:
    reply = world.client.get("/docs")

    assert reply.content_type == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    assert "<script" not in reply.text
    assert not re.findall(r"(?:src|href)=\"(?!#|openapi\.json\")", reply.text)
    for name in ("/v1/speech/jobs/{job_id}/audio", "JobRequest", "speech.job.failed"):
        assert name in reply.text
