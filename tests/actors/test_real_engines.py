"""The synthesis actor with real packages in real children, over tiny folders of random weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import update

from actors.counts import Counts
from actors.departure import Departure
from actors.making import Synthesis
from actors.synthesize import synthesize
from jobs.database import Database
from jobs.job import Job, Stage
from jobs.store import JobStore
from jobs.tables import jobs as jobs_table
from speech.host import EngineHost
from speech.ladder import Learned
from storage.keys import is_voice_state
from tests.speech import tiny_kokoro, tiny_supertonic, tiny_voxcpm2
from tests.speech.test_host import plug

from .conftest import ask
from .doubles import Bells, MemoryStore, rescue

pytestmark = pytest.mark.slow

TEXT = (
    "The harbour was quiet before dawn, and nobody spoke. Far out on the water a lamp went up and down. "
    "An old man counted the boats as they came home, one by one, and wrote their names into a book."
)

#: The real engine, whose real loop runs out of memory once the model holds so many positions.
SMALL = """
    import os
    from speech.engines.voxcpm2 import ENGINE as REAL
    class Small:
        options = REAL.options
        missing = REAL.missing
        def load(self, options):
            engine = REAL.load(options)
            import torch
            cache = engine._model.tts_model.base_lm.kv_cache
            real = cache.step
            def step():
                if cache.current_length >= int(os.environ["POSITIONS"]):
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return real()
            cache.step = step
            return engine
    ENGINE = Small()
    """


@pytest.fixture(scope="module")
def voxcpm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_voxcpm2.build(tmp_path_factory.mktemp("models") / "voxcpm2")


@contextmanager
def child(
    engine: str, options: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> Iterator[EngineHost]:
    with EngineHost(engine, options, nice=0, chunk_seconds=60, environ=environ) as host:
        host.start()
        yield host


def work(
    jobs: JobStore,
    objects: MemoryStore,
    host: EngineHost,
    *,
    queue: str = "cpu.fake",
    counts: Counts | None = None,
) -> None:
    synthesize(
        Synthesis(
            queue=queue,
            holder=f"w-{host.pid}",
            jobs=jobs,
            objects=objects,
            engine=host,
            ring=Bells(),
            departure=Departure(),
            broken=pytest.fail,
            rescue=rescue(jobs, counts=counts),
            learned=Learned(),
        )
    )


def spoken(jobs: JobStore, job: Job, text: str) -> list[str]:
    return [text[clip.text_start : clip.text_end] for clip in jobs.clips(job.id)]


def test_an_out_of_memory_error_inside_the_real_loop_costs_no_word(
    jobs: JobStore, voxcpm2: Path, tmp_path: Path
) -> None:
    environ = plug(tmp_path, "small", SMALL, POSITIONS="110")
    objects, counts = MemoryStore(), Counts()
    job = ask(jobs, TEXT, voice="default")
    with child("small", {"model": str(voxcpm2), "device": "cpu"}, environ) as host:
        pid = host.pid
        work(jobs, objects, host, counts=counts)
        assert host.pid == pid, "the child lives on"

    after = jobs.get(job.id, "ten_a")
    assert after.stage is Stage.ENCODING, after
    assert "".join(spoken(jobs, job, TEXT)) == TEXT
    assert counts.all()["rung.split"] >= 1
    assert {warning.code for warning in after.warnings} >= {"memory_retried", "memory_split"}
    assert len({clip.voice_state_key for clip in jobs.clips(job.id)}) == 1


def test_a_job_goes_on_in_its_voice_on_another_worker_as_if_nothing_had_happened(
    jobs: JobStore, voxcpm2: Path, database: Database
) -> None:
    options = {"model": str(voxcpm2), "device": "cpu", "max_chars": "60"}
    whole, broken = MemoryStore(), MemoryStore()
    first = ask(jobs, TEXT, voice="default")
    with child("voxcpm2", options) as host:
        work(jobs, whole, host)
        second = ask(jobs, TEXT, voice="default")
        # The store fails at the third clip: the worker lets go.
        broken.after_put = lambda key: setattr(broken, "down", len(broken.objects) >= 3)
        work(jobs, broken, host)
    made = len(jobs.clips(second.id))
    assert 1 <= made < len(jobs.clips(first.id))
    broken.down, broken.after_put = False, lambda key: None
    with database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))
    with child("voxcpm2", options) as host:
        work(jobs, broken, host)

    one, two = jobs.clips(first.id), jobs.clips(second.id)
    assert [clip.epoch for clip in two][-1] == 2
    keys = {clip.voice_state_key for clip in two}
    assert len(keys) == 1
    (key,) = keys
    assert key is not None
    assert is_voice_state(key, broken.objects[key][0])
    # Same seed, same text, same voice: the same sound, whichever worker made it.
    assert [(clip.text_start, clip.sha256) for clip in one] == [
        (clip.text_start, clip.sha256) for clip in two
    ]


@pytest.mark.parametrize("engine", ["supertonic-3", "kokoro"])
def test_the_onnx_engines_speak_whole_jobs(jobs: JobStore, tmp_path: Path, engine: str) -> None:
    build = tiny_supertonic.build if engine == "supertonic-3" else tiny_kokoro.build
    voice = "M1" if engine == "supertonic-3" else "af_heart"
    objects = MemoryStore()
    job = ask(jobs, TEXT, voice=voice)
    with child(engine, {"model": str(build(tmp_path / "model")), "threads": "1"}) as host:
        work(jobs, objects, host)
        rate = host.info.sample_rate

    clips = jobs.clips(job.id)
    assert jobs.get(job.id, "ten_a").stage is Stage.ENCODING
    assert "".join(spoken(jobs, job, TEXT)) == TEXT
    for clip in clips:
        assert hashlib.sha256(objects.objects[clip.key][0]).hexdigest() == clip.sha256
        assert (clip.sample_rate, clip.voice_state_key) == (rate, None)
