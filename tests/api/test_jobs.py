"""Submitting a job, watching it, and going to its audio."""

from __future__ import annotations

from datetime import timedelta

from .conftest import PUBLIC_URL, World


def test_a_job_is_accepted_stored_and_its_queue_marked(world: World) -> None:
    reply = world.post({"input": "Hello."})

    body = reply.get_json()
    assert reply.status_code == 202
    assert reply.headers["Location"] == f"{PUBLIC_URL}/v1/speech/jobs/{body['id']}"
    assert reply.headers["Retry-After"] == "1"
    assert (body["status"], body["model"], body["voice"], body["language"]) == ("queued", "tone", "one", "en")
    assert world.marks.queues == ["cpu.tone"]
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert (claim.input, claim.seed) == ("Hello.", 7)


def test_every_member_is_carried_to_the_worker(world: World) -> None:
    world.names["hooks.example"] = ["93.184.216.34"]
    reply = world.post(
        {
            "input": "Guten Tag.",
            "model": "tone",
            "voice": {"id": "zwei"},
            "language": "DE-at",
            "response_format": "mp3",
            "seed": 2**32 - 1,
            "metadata": {"chapter": "1"},
            "webhook_url": "https://hooks.example/x",
            "expires_in": 3600,
        }
    )

    assert reply.status_code == 202
    body = reply.get_json()
    assert (body["voice"], body["language"], body["metadata"]) == ("zwei", "de-DE", {"chapter": "1"})
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert (claim.seed, claim.webhook_url) == (2**32 - 1, "https://hooks.example/x")
    assert claim.job.expires_in == 3600


def test_null_counts_as_absent(world: World) -> None:
    reply = world.post(
        {"input": "Hello.", "voice": None, "seed": None, "metadata": None, "webhook_url": None}
    )

    assert reply.status_code == 202
    assert reply.get_json()["voice"] == "one"


def test_the_language_follows_the_voice(world: World) -> None:
    assert world.post({"input": "Hallo.", "voice": "zwei"}).get_json()["language"] == "de-DE"


def test_an_unfinished_job_says_when_to_ask_again(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()

    reply = world.get(f"/v1/speech/jobs/{job['id']}")

    assert reply.get_json() == job
    assert reply.headers["Retry-After"] == "1"
    assert reply.headers["Cache-Control"] == "no-store"
    assert "Authorization" in reply.headers["Vary"]


def test_a_completed_job_carries_a_link_and_its_audio_redirects(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()
    world.complete(job["id"])

    reply = world.get(f"/v1/speech/jobs/{job['id']}")
    audio = world.get(f"/v1/speech/jobs/{job['id']}/audio")

    result = reply.get_json()["result"]["audio"]
    assert result["url"] == "https://s3.example/audio/7d/x/1.mp3?seconds=3600"
    assert result["url_expires_at"] is not None
    assert "Retry-After" not in reply.headers
    assert (audio.status_code, audio.headers["Cache-Control"]) == (302, "no-store")
    assert audio.headers["Location"] == result["url"]
    assert audio.data == b""
    head = world.client.head(f"/v1/speech/jobs/{job['id']}/audio", headers={"xi-api-key": world.secret})
    assert head.status_code == 302


def test_a_link_lives_no_longer_than_the_audio(world: World) -> None:
    job = world.post({"input": "Hello.", "expires_in": 3600}).get_json()
    world.complete(job["id"])
    world.ahead = timedelta(minutes=50)

    url = world.get(f"/v1/speech/jobs/{job['id']}").get_json()["result"]["audio"]["url"]

    assert 590 <= int(url.rpartition("=")[2]) <= 600


def test_expired_audio_is_gone_while_its_job_is_still_told(world: World) -> None:
    job = world.post({"input": "Hello.", "expires_in": 3600}).get_json()
    world.complete(job["id"])
    world.ahead = timedelta(hours=1)

    told = world.get(f"/v1/speech/jobs/{job['id']}").get_json()
    audio = world.get(f"/v1/speech/jobs/{job['id']}/audio")

    assert told["result"]["audio"]["url"] == told["urls"]["audio"]
    assert told["result"]["audio"]["url_expires_at"] is None
    assert (audio.status_code, audio.get_json()["code"]) == (410, "audio_expired")


def test_audio_before_completion_is_a_conflict_that_says_when(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()

    reply = world.get(f"/v1/speech/jobs/{job['id']}/audio")

    assert (reply.status_code, reply.get_json()["code"]) == (409, "job_not_finished")
    assert reply.headers["Retry-After"] == "1"


def test_audio_of_a_failed_job_is_a_conflict_for_good(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()
    world.fail(job["id"])

    reply = world.get(f"/v1/speech/jobs/{job['id']}/audio")

    assert (reply.status_code, reply.get_json()["code"]) == (409, "job_failed")
    assert "Retry-After" not in reply.headers
    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["error"]["code"] == "engine_failed"


def test_another_tenants_job_does_not_exist(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()
    other = {"X-API-Key": world.keys.create("other").secret}

    for path in (f"/v1/speech/jobs/{job['id']}", f"/v1/speech/jobs/{job['id']}/audio"):
        reply = world.client.get(path, headers=other)
        assert (reply.status_code, reply.get_json()["code"]) == (404, "job_not_found")


def test_odd_job_ids_are_not_found(world: World) -> None:
    for odd in ("x", "job_", "job_%00", "job_" + "z" * 5000, "%ff%fe", "job_01m8qvqa6c08ksb6jyf1jg251m'--"):
        assert world.get(f"/v1/speech/jobs/{odd}").status_code == 404, odd


def test_models_and_voices_come_from_the_workers(world: World) -> None:
    models, voices = world.get("/v1/models").get_json(), world.get("/v1/voices").get_json()

    assert [model["id"] for model in models["data"]] == ["tone"]
    assert models["data"][0]["available"] is True
    assert [(voice["id"], voice["model"]) for voice in voices["data"]] == [("one", "tone"), ("zwei", "tone")]


def test_a_model_without_a_live_worker_is_still_accepted(world: World) -> None:
    world.workers.leave("w1")

    assert world.post({"input": "Hello."}).status_code == 202


def test_before_any_worker_came_the_default_model_is_unavailable(world: World) -> None:
    world.workers.publish("w1", queue="cpu.other", model="other", info={**_other()})

    reply = world.post({"input": "Hello."})

    assert (reply.status_code, reply.get_json()["code"]) == (503, "no_worker")
    assert reply.headers["Retry-After"] == "5"


def _other() -> dict[str, object]:
    voices = [{"id": "x", "name": "X", "language": "*"}]
    return {"languages": ["*"], "voices": voices, "default_voice": "x"}


def test_an_engine_of_any_language_gets_the_language_as_asked(world: World) -> None:
    world.workers.publish("w2", queue="gpu.other", model="other", info={**_other()})

    reply = world.post({"input": "Hello.", "model": "other", "language": "pt-BR"})

    assert reply.get_json()["language"] == "pt-BR"
    assert world.post({"input": "Hello.", "model": "other"}).get_json()["language"] == "und"
    assert world.marks.queues == ["gpu.other", "gpu.other"]
