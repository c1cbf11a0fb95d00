"""Databases for the tests of `jobs`."""

from __future__ import annotations

from .databases import (
    clock,
    database,
    dialect,
    empty_url,
    postgresql_url,
    sqlite_template,
    url,
)

__all__ = ["clock", "database", "dialect", "empty_url", "postgresql_url", "sqlite_template", "url"]
