"""SQL for the present owner, installation and repository of a claim, as needed for requests to GitHub.

A claim stores the scope and the installation that were valid when the claim was inserted. An ended claim keeps its
installation and the login in its scope. The owner might have a new login by now, and the App might have a new
installation in the account. Webhooks write the new login and the new installation to other tables, so the SQL reads
these tables. If a repository has a new name, GitHub redirects from the former name, and `models.intake.announcements`
writes the new name.
"""

from __future__ import annotations

from dataclasses import dataclass

INSTALLATION_NOW = """
    coalesce((SELECT own.id FROM installations own WHERE own.account_id = c.account_id AND own.left_at IS NULL
              ORDER BY own.event_at DESC NULLS LAST, own.id DESC LIMIT 1), c.installation_id)
"""
"""SQL on a claim `c`: the owner's newest working installation, or the claim's own installation if there is none.

The newest installation is the one with the latest `installation` event. Installations without such an event come last.
Among these, the largest id comes first, because GitHub assigns increasing ids.
"""

REPOSITORY_ID = """
    coalesce(c.repository_id,
             (SELECT own.repository_id FROM jobs own WHERE own.id = c.job_id),
             (SELECT done.repository_id FROM executions x JOIN jobs done ON done.id = x.job_id
              WHERE x.claim_id = c.id ORDER BY x.id DESC LIMIT 1))
"""
"""SQL on a claim `c`: the id of the repository in the claim's scope, or NULL if the id is not known.

Earlier versions did not store this id in the claim. For such a claim, the SQL reads the repository id of the claim's
job, or else of the last job that the claim executed. A runner that is registered in a repository executes only jobs of
that repository.
"""

SCOPE_NOW = f"""
    CASE WHEN starts_with(c.scope, 'repos/')
         THEN coalesce('repos/' || (SELECT owner.login FROM accounts owner WHERE owner.id = c.account_id) || '/'
                       || split_part(c.scope, '/', 3), c.scope) || coalesce('#' || {REPOSITORY_ID}, '')
         ELSE coalesce('orgs/' || (SELECT owner.login FROM accounts owner
                                   WHERE owner.id = c.account_id AND c.scope IS NOT NULL), c.scope) END
"""
"""SQL on a claim `c`: the scope of the claim's runner.

The scope has the owner's present login and, if it is known, the id of the repository.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerClaim:
    """A claim whose runner is compared with GitHub's list. Installation and scope are current."""

    id: int
    pod_uid: str
    pool_id: int
    installation_id: int
    scope: str
    runner_name: str
