"""Images of Postgres and Redis for tests, made of Debian's packages.

The images read these variables of the official images: POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB and PGDATA. The
data are deleted with the container.
"""

from __future__ import annotations

from pathlib import Path

from lab.go_build import Say, quiet
from lab.node.archive import Image
from lab.node.images import PATH, debian_root, packed

POSTGRES = "lab.ostler.dev/postgres:1"
REDIS = "lab.ostler.dev/redis:1"

_PACKAGES = ("ca-certificates", "postgresql", "redis-server")
_SOCKETS = "run/postgresql"
"""Folder for sockets of Postgres, which every user may write to, as in the official image."""
_SETTINGS = "$1/etc/postgresql-common"
_NO_CLUSTER = f'mkdir -p "{_SETTINGS}" && echo create_main_cluster=false > "{_SETTINGS}/createcluster.conf"'
_POSTGRES_SCRIPT = """\
#!/bin/sh
# Create the database of POSTGRES_DB on the first start, then run the server, as the official image does.
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
PGDATA=${PGDATA:-/var/lib/postgresql/data}
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
export PATH PGDATA
case "${1:--}" in -*) set -- postgres "$@" ;; esac
if [ "$1" = postgres ] && [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA" /run/postgresql
  chown -R postgres:postgres "$PGDATA" /run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD}"
  export PGPASSWORD="$POSTGRES_PASSWORD"
  password=$(mktemp)
  printf '%s\\n' "$POSTGRES_PASSWORD" > "$password"
  initdb --username="$user" --pwfile="$password" --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
  rm "$password"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  if [ "$database" != postgres ]; then
    pg_ctl --wait --options="-c listen_addresses=''" start
    createdb --username="$user" --maintenance-db=postgres "$database"
    pg_ctl --wait stop
  fi
fi
exec "$@"
"""
_REDIS_SCRIPT = """\
#!/bin/sh
# Run the server for clients of other Pods, as the official image does.
set -eu
case "${1:--}" in -* | *.conf) set -- redis-server "$@" --protected-mode no ;; esac
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  exec setpriv --reuid=redis --regid=redis --init-groups "$@"
fi
exec "$@"
"""


def postgres_image(name: str = POSTGRES, say: Say = quiet) -> Path:
    """Return the archive of an image with Debian's Postgres, under `name`. Raises `StartError`."""
    return _image("postgres", name, _POSTGRES_SCRIPT, "/var/lib/postgresql", say)


def redis_image(name: str = REDIS, say: Say = quiet) -> Path:
    """Return the archive of an image with Debian's Redis, under `name`. Raises `StartError`."""
    return _image("redis", name, _REDIS_SCRIPT, "/var/lib/redis", say)


def _image(kind: str, name: str, script: str, folder_inside: str, say: Say) -> Path:
    image = Image(
        name=name,
        layers=[debian_root(_PACKAGES, say, hooks=[_NO_CLUSTER])],
        entrypoint=["docker-entrypoint.sh"],
        environment={"PATH": PATH},
        working_directory=folder_inside,
    )
    programs = {"usr/local/bin/docker-entrypoint.sh": script}
    return packed(kind, image, say, programs=programs, open_folders=[_SOCKETS])
