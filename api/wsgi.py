"""What gunicorn serves: `api.wsgi:app`. Importing it reads the environment."""

# ruff: noqa: E402 - gevent must patch before anything else is imported, psycopg above all.
from gevent import monkey

monkey.patch_all()

import logging
import sys

from api.app import create_app
from api.services import build
from config import settings as configuration

settings = configuration.load()
logging.basicConfig(
    level=settings.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
)
app = create_app(build(settings))
