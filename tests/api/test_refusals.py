"""Bad input: a clear error, and nothing is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.bodies import LARGEST_BODY

from .conftest import World

SECRET_TEXT = "quite private words"


def _deep(levels: int) -> bytes:
    return b'{"input":"x","metadata":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b'{"input":"\xed\xa0\x80"}', 400, "invalid_json"),
        (b'{"input":"a","input":"b"}', 400, "invalid_json"),
        (b'{"input":"a","metadata":{"k":"1","k":"2"}}', 400, "invalid_json"),
        (b'{"input":"a","seed":NaN}', 400, "invalid_json"),
        (b'{"input":"a","seed":-Infinity}', 400, "invalid_json"),
        (b'{"input":"a","seed":1e999}', 400, "invalid_json"),
        (b'{"input":"a","seed":' + b"9" * 5000 + b"}", 400, "invalid_json"),
        (b'{"input":"a"} x', 400, "invalid_json"),
        (b'\xef\xbb\xbf{"input":"a"}', 400, "invalid_json"),
        (_deep(33), 400, "invalid_json"),
        (_deep(200_000), 400, "invalid_json"),
        (b"[" * 1_000_000, 400, "invalid_json"),
        (b'{"input":"a","metadata":[' + b"{}," * 600_000 + b"{}]}", 400, "invalid_json"),
        (json.dumps({f"m{n}": n for n in range(100_000)}).encode(), 400, "invalid_json"),
        (_deep(20), 422, "wrong_type"),
        (b"[]", 422, "wrong_type"),
        (b"null", 422, "wrong_type"),
        (b'"\\ud800"', 422, "invalid_text"),
        (b'{"input":"\\ud800"}', 422, "invalid_text"),
        (b'{"input":"a","\\udfff":1}', 422, "invalid_text"),
    ],
)
def test_what_is_no_strict_json_is_refused(world: World, body: bytes, status: int, code: str) -> None:
    reply = world.post(body)

    assert (reply.status_code, reply.get_json()["code"]) == (status, code)
    assert reply.content_type == "application/problem+json"
    assert world.marks.queues == []


@pytest.mark.parametrize(
    ("members", "pointer", "code"),
    [
        ({"input": ""}, "/input", "too_short"),
        ({"input": None}, "/input", "wrong_type"),
        ({"input": 5}, "/input", "wrong_type"),
        ({"input": "x" * 2001}, "/input", "input_too_long"),
        ({"input": "... !? 🎉"}, "/input", "no_speakable_text"),
        ({"input": "\0\0"}, "/input", "no_speakable_text"),
        ({"input": "\x1b[31m\x1b[0m"}, "/input", "no_speakable_text"),
        ({"model": "gpt-4"}, "/model", "model_not_found"),
        ({"model": "to\0ne"}, "/model", "model_not_found"),
        ({"voice": "on\0e"}, "/voice", "voice_not_found"),
        ({"model": ""}, "/model", "too_short"),
        ({"voice": "nobody"}, "/voice", "voice_not_found"),
        ({"voice": {"id": "nobody"}}, "/voice/id", "voice_not_found"),
        ({"voice": {"name": "one"}}, "/voice", "wrong_type"),
        ({"voice": 3}, "/voice", "wrong_type"),
        ({"language": "fr"}, "/language", "language_not_supported"),
        ({"language": "english please"}, "/language", "language_not_supported"),
        ({"response_format": "wav"}, "/response_format", "format_not_supported"),
        ({"seed": -1}, "/seed", "out_of_range"),
        ({"seed": 2**32}, "/seed", "out_of_range"),
        ({"seed": 10**400}, "/seed", "out_of_range"),
        ({"seed": 1.0}, "/seed", "wrong_type"),
        ({"seed": True}, "/seed", "wrong_type"),
        ({"seed": "1"}, "/seed", "wrong_type"),
        ({"expires_in": 3599}, "/expires_in", "out_of_range"),
        ({"expires_in": 2_678_401}, "/expires_in", "out_of_range"),
        ({"metadata": {str(n): "" for n in range(17)}}, "/metadata", "too_many"),
        ({"metadata": {"k" * 65: ""}}, "/metadata/" + "k" * 63 + "…", "too_long"),
        ({"metadata": {"": ""}}, "/metadata/", "too_short"),
        ({"metadata": {"a/b~c": "v" * 513}}, "/metadata/a~1b~0c", "too_long"),
        ({"metadata": {"k": 1}}, "/metadata/k", "wrong_type"),
        ({"metadata": {"k": "a\0b"}}, "/metadata/k", "invalid_text"),
        ({"metadata": []}, "/metadata", "wrong_type"),
        ({"webhook_url": "http://127.0.0.1/"}, "/webhook_url", "webhook_url_rejected"),
        ({"webhook_url": "https://nowhere.example/"}, "/webhook_url", "webhook_url_unresolved"),
        ({"webhook_url": "https://a\0b/"}, "/webhook_url", "invalid_text"),
        ({"pitch": 2}, "/pitch", "unknown_member"),
        ({"x" * 100_000: 2}, "/" + "x" * 63 + "…", "unknown_member"),
    ],
)
def test_a_member_at_fault_is_named(world: World, members: dict[str, Any], pointer: str, code: str) -> None:
    reply = world.post({"input": SECRET_TEXT} | members)

    body = reply.get_json()
    assert (reply.status_code, body["code"]) == (422, code)
    assert [(fault["pointer"], fault["code"]) for fault in body["errors"]] == [(pointer, code)]
    assert body["error"]["param"] == pointer.split("/")[1]
    assert SECRET_TEXT not in reply.text
    assert len(reply.data) < 3000
    assert world.marks.queues == []


def test_the_answer_names_limits_and_what_is_allowed(world: World) -> None:
    def fault(members: dict[str, Any]) -> dict[str, Any]:
        errors: list[dict[str, Any]] = world.post({"input": "Hello."} | members).get_json()["errors"]
        return errors[0]

    assert fault({"input": "x" * 2001})["limit"] == 2000
    assert fault({"seed": -1})["limit"] == 0
    assert fault({"model": "gpt-4"})["allowed"] == ["tone"]
    assert fault({"voice": "nobody"})["allowed"] == ["one", "zwei"]
    assert fault({"language": "fr"})["allowed"] == ["en", "de-DE"]
    assert fault({"response_format": "wav"})["allowed"] == ["mp3"]
    assert "webhook_url" in fault({"pitch": 2})["allowed"]


def test_a_webhook_whose_name_has_no_address_now_is_told_apart(world: World) -> None:
    refused = {"input": "Hello.", "webhook_url": "https://hooks.example/"}
    world.names["hooks.example"] = ["10.0.0.1"]
    private = world.post({"input": "Hello.", "webhook_url": "https://hooks.example:8443/"}).get_json()
    del world.names["hooks.example"]

    unresolved = world.post(refused).get_json()

    assert private["code"] == "webhook_url_rejected"
    assert unresolved["code"] == "webhook_url_unresolved"
    assert "no address now" in unresolved["detail"]
    world.names["hooks.example"] = ["93.184.216.34"]
    assert world.post(refused).status_code == 202


def test_several_faults_are_told_at_once_but_not_thousands(world: World) -> None:
    several = world.post({"seed": -1, "expires_in": 1}).get_json()
    thousands = world.post({"input": "x"} | {f"m{n}": 1 for n in range(900)}).get_json()

    assert [fault["pointer"] for fault in several["errors"]] == ["/input", "/seed", "/expires_in"]
    assert len(thousands["errors"]) == 16


def test_a_nul_in_the_input_is_no_fault(world: World) -> None:
    assert world.post({"input": "Hel\0lo."}).status_code == 202


@pytest.mark.parametrize(
    "kind", ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_another_media_type_is_refused(world: World, kind: str) -> None:
    reply = world.post(b'{"input":"x"}', content_type=kind)

    assert (reply.status_code, reply.get_json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json"])
def test_json_by_any_name_is_taken(world: World, kind: str) -> None:
    assert world.post(b'{"input":"x"}', content_type=kind).status_code == 202


def test_a_body_over_the_limit_is_refused_and_the_limit_named(world: World) -> None:
    reply = world.post(json.dumps({"input": "x" * LARGEST_BODY}).encode())

    assert (reply.status_code, reply.get_json()["errors"][0]["limit"]) == (413, LARGEST_BODY)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer vf_live_00000000_00000000000000000000000000000000"},
        {"Authorization": "Bearer " + "x" * 100_000},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer \xe9\xff"},
        {"X-API-Key": "' OR 1=1 --"},
        {"xi-api-key": "\x7f%00"},
    ],
)
def test_without_a_good_key_nothing_is_done(world: World, headers: dict[str, str]) -> None:
    for reply in (
        world.client.post("/v1/speech/jobs", json={"input": "Hello."}, headers=headers),
        world.client.get("/v1/models", headers=headers),
    ):
        assert (reply.status_code, reply.get_json()["code"]) == (401, "invalid_api_key")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert reply.get_json()["error"]["type"] == "authentication_error"


def test_a_key_may_stand_in_three_places_and_a_revoked_one_ends(world: World) -> None:
    key = world.keys.create("short-lived")
    for headers in (
        {"Authorization": f"bearer  {key.secret}"},
        {"X-API-Key": key.secret},
        {"xi-api-key": key.secret, "Authorization": "Basic x"},
    ):
        assert world.client.get("/v1/models", headers=headers).status_code == 200
    gone = world.keys.create("gone")
    world.keys.revoke(gone.id)
    assert world.client.get("/v1/models", headers={"X-API-Key": gone.secret}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/static/x", 404),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/models", 405),
        ("PUT", "/healthz", 405),
        ("BREW", "/healthz", 405),
    ],
)
def test_no_error_is_html(world: World, method: str, path: str, status: int) -> None:
    reply = world.client.open(path, method=method)

    body = reply.get_json()
    assert reply.status_code == body["status"] == status
    assert reply.content_type == "application/problem+json"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert body["request_id"] == reply.headers["X-Request-Id"]
    if status == 405:
        assert reply.headers["Allow"] in ("GET, HEAD", "POST")


def test_a_trailing_slash_is_no_redirect(world: World) -> None:
    assert world.client.get("/healthz/").status_code == 200


@pytest.mark.parametrize("host", ["bad host", "a..b", "[::1", "x" * 300, "a@b"])
def test_an_odd_host_header_is_no_server_error(world: World, host: str) -> None:
    reply = world.client.get("/healthz", headers={"Host": host})

    assert reply.status_code in (200, 400)
    assert reply.is_json


def test_the_request_id_is_the_callers_if_it_is_sane(world: World) -> None:
    assert (
        world.client.get("/healthz", headers={"X-Request-Id": "a-1.b_C"}).headers["X-Request-Id"] == "a-1.b_C"
    )
    for odd in ("", "a b", "x" * 129, "é", '"'):
        made = world.client.get("/healthz", headers={"X-Request-Id": odd}).headers["X-Request-Id"]
        assert made.startswith("req_")


def test_an_unknown_error_tells_nothing_but_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(job_id: str, tenant_id: str) -> None:
        raise ZeroDivisionError("the secret reason")

    monkeypatch.setattr(world.store, "get", broken)

    reply = world.get("/v1/speech/jobs/job_01m8qvqa6c08ksb6jyf1jg251m")

    assert (reply.status_code, reply.get_json()["code"]) == (500, "internal_error")
    assert "secret reason" not in reply.text
    assert "ZeroDivisionError: the secret reason" in caplog.text


def test_a_request_is_one_log_line_without_anything_private(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "voxfleet.api")

    world.post({"input": SECRET_TEXT}, query_string={"token": "hush"})

    lines = [record.getMessage() for record in caplog.records if record.name == "voxfleet.api"]
    assert len(lines) == 1
    assert lines[0].startswith("POST /v1/speech/jobs 202 ")
    assert "tenant=ten_" in lines[0]
    assert not any(private in lines[0] for private in (SECRET_TEXT, "hush", world.secret))
