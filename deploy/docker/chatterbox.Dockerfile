# Workers of Chatterbox Turbo on an NVIDIA GPU. Its package pins torch 2.6, and numpy 1 below Python 3.13: hence an
# image, and a Python, of its own, without the versions that the tests have passed with.
#
#   docker build -f deploy/docker/chatterbox.Dockerfile -t voxfleet-chatterbox:0.1.0 .
#   docker run --gpus all --env-file fleet.env -v ./weights:/models:ro voxfleet-chatterbox:0.1.0

FROM python:3.13-slim-bookworm AS build

WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml README.md LICENSE ./
COPY actors/ actors/
COPY api/ api/
COPY cli/ cli/
COPY config/ config/
COPY jobs/ jobs/
COPY speech/ speech/
COPY storage/ storage/
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check ".[rabbitmq,chatterbox-turbo]"


FROM python:3.13-slim-bookworm

LABEL org.opencontainers.image.title="voxfleet-chatterbox" \
      org.opencontainers.image.description="Chatterbox workers of voxfleet, a self-hosted text-to-speech job service" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"

RUN groupadd --gid 10001 voxfleet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin voxfleet \
    && install -d -o 10001 -g 10001 -m 0700 /data

COPY --from=build /opt/venv /opt/venv

# The root file system may be read-only: what is written goes to /tmp or /data, under any user id.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    VOXFLEET_ENGINE_CHATTERBOX_TURBO_MODEL=/models \
    VOXFLEET_DATA_DIR=/data

WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM

# Healthy is a worker of this host that has lately written its row in the job table: it lives, its settings
# are right, and it reaches the database.
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import contextlib, socket, sys; \
from sqlalchemy import select; \
from config.settings import load; \
from jobs.database import connect; \
from jobs.tables import workers as w; \
from jobs.workers import ALIVE_SECONDS; \
db = connect(load().database); \
stack = contextlib.ExitStack(); \
c = stack.enter_context(db.read()); \
fresh = w.c.seen_at > db.now(c) - ALIVE_SECONDS; \
mine = w.c.id.startswith(socket.gethostname()[:60] + ':', autoescape=True); \
sys.exit(c.execute(select(w.c.id).where(fresh, mine)).first() is None)"]

ENTRYPOINT ["voxfleet"]
CMD ["worker", "synth", "--model=chatterbox-turbo"]
