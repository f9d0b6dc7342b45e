"""List of the checks of all families.

The command imports this module completely before a check runs. Otherwise threads that import the same modules
concurrently could see partly initialised modules.
"""

from __future__ import annotations

from cli.doctor import (
    certificate,
    cluster,
    fleet,
    github,
    installation,
    network,
    postgres,
    redis,
    runners,
    strangers,
)
from cli.doctor.findings import Check

CHECKS: tuple[Check, ...] = (
    Check("epoch", "postgres", postgres.epoch),
    Check("settings", "settings", installation.settings),
    Check("versions", "settings", installation.versions),
    Check("certificate", "settings", certificate.certificate, within=15),
    Check("postgres", "postgres", postgres.postgres),
    Check("clock of postgres", "postgres", postgres.clock_of_postgres),
    Check("connections", "postgres", postgres.connections),
    Check("database revision", "postgres", postgres.revision),
    Check("redis", "redis", redis.redis),
    Check("redis options", "redis", redis.options),
    Check("kubernetes", "cluster", cluster.kubernetes),
    Check("rights", "cluster", cluster.rights, within=20),
    Check("definition", "cluster", cluster.definition),
    Check("admission policy", "cluster", cluster.admission, within=30),
    Check("pod creation", "cluster", cluster.pod_creation, within=20),
    Check("role creation", "cluster", cluster.role_creation, within=20),
    Check("hook pods", "cluster", cluster.hook_pods, within=30),
    Check("job network", "cluster", network.job_network, within=20),
    Check("pools", "cluster", cluster.pools),
    Check("unread namespaces", "cluster", cluster.unread_namespaces),
    Check("pod security", "cluster", cluster.pod_security),
    Check("way to github", "github", github.way),
    Check("github app", "github", github.app),
    Check("clock", "github", github.clock),
    Check("permissions", "github", github.permissions),
    Check("strangers", "github", strangers.strangers),
    Check("events", "github", github.events),
    Check("deliveries", "github", github.deliveries),
    Check("mints", "github", github.mints),
    Check("runner version", "github", runners.runner_version),
    Check("beat", "fleet", fleet.beats),
    Check("messages", "fleet", fleet.messages),
    Check("web", "fleet", fleet.web),
    Check("sweeps", "fleet", fleet.sweeps),
    Check("webhooks", "fleet", fleet.webhooks),
    Check("unused runners", "fleet", runners.unused_runners),
)
"""All checks, in the order of the output."""
