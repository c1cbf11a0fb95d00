"""Databases for the contracts of the stores of `jobs`, each suite run over SQLite and PostgreSQL."""

from __future__ import annotations

from ..jobs.databases import (
    clock,
    database,
    dialect,
    postgresql_url,
    sqlite_template,
    url,
)

__all__ = ["clock", "database", "dialect", "postgresql_url", "sqlite_template", "url"]
