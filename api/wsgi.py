"""What gunicorn serves: `api.wsgi:app`. Importing it reads the environment."""

# ruff: noqa: E402 - gevent must patch before anything else is imported, psycopg above all.
from gevent import monkey

monkey.patch_all()

import gc

from api.app import create_app
from api.services import build
from config import settings as configuration
from config.logs import start_logging

settings = configuration.load()
start_logging(settings.log_level)
app = create_app(build(settings))
# What start-up has made stays: no later collection needs to walk it while requests wait.
gc.collect()
gc.freeze()
