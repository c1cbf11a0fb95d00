# Workers of VoxCPM2 on an NVIDIA GPU. torch's wheels bring CUDA; the host has the driver and its container toolkit.
#
#   docker build -f deploy/docker/gpu.Dockerfile -t voxfleet-gpu:0.1.0 .
#   docker run --gpus all --env-file fleet.env -v voxfleet-models:/models voxfleet-gpu:0.1.0

FROM python:3.11-slim-bookworm AS build

WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml README.md LICENSE ./
COPY requirements/constraints.txt requirements/voxcpm2.txt requirements/voxcpm.txt requirements/
COPY actors/ actors/
COPY api/ api/
COPY cli/ cli/
COPY config/ config/
COPY jobs/ jobs/
COPY speech/ speech/
COPY storage/ storage/
# Wheels alone: a package that would have to be compiled stops the build here. What `voxcpm` asks for beyond
# requirements/voxcpm2.txt is its demo's and its training's.
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
        -c requirements/constraints.txt ".[rabbitmq]" -r requirements/voxcpm2.txt \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
        --no-deps -r requirements/voxcpm.txt


FROM python:3.11-slim-bookworm

LABEL org.opencontainers.image.title="voxfleet-gpu" \
      org.opencontainers.image.description="GPU workers of voxfleet, a self-hosted text-to-speech job service" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"

# Triton, which compiles the model while it is loaded, builds a stub of its own with the system's C compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

RUN groupadd --gid 10001 voxfleet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin voxfleet \
    && install -d -o 10001 -g 10001 -m 0700 /data /models

COPY --from=build /opt/venv /opt/venv

# The root file system may be read-only: what is written goes to /tmp or /data, under any user id.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    HF_HOME=/models \
    VOXFLEET_DATA_DIR=/data

WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM

# Healthy is a worker of this host that has lately written its row in the job table: it lives, its settings
# are right, and it reaches the database.
HEALTHCHECK --interval=30s --timeout=10s --start-period=1800s --retries=3 \
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
CMD ["worker", "synth", "--model=voxcpm2"]
