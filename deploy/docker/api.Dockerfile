# The API: HTTP in, rows and bells out. No model runtime, no ffmpeg, no compiler.
#
#   docker build -f deploy/docker/api.Dockerfile -t voxfleet-api:0.1.0 .

FROM python:3.11-slim-bookworm AS build

WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml README.md LICENSE ./
COPY requirements/constraints.txt requirements/
COPY actors/ actors/
COPY api/ api/
COPY cli/ cli/
COPY config/ config/
COPY jobs/ jobs/
COPY speech/ speech/
COPY storage/ storage/
# Wheels alone: a package that would have to be compiled stops the build here.
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
    -c requirements/constraints.txt ".[rabbitmq]"


FROM python:3.11-slim-bookworm

LABEL org.opencontainers.image.title="voxfleet-api" \
      org.opencontainers.image.description="HTTP API of voxfleet, a self-hosted text-to-speech job service" \
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
    VOXFLEET_DATA_DIR=/data \
    VOXFLEET_API_BIND=0.0.0.0:8000

WORKDIR /app
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM

# urlopen raises, and so fails the check, on any answer that is not a success.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]

ENTRYPOINT ["voxfleet"]
CMD ["api"]
