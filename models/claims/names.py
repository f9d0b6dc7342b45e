"""Under which names GitHub is asked today about what claims left there.

A claim keeps the scope and the installation that it was made with; those of a claim that has ended are never written
again. Its owner may have another login since, and the App another installation there: both stand in rows that
webhooks keep, so they are read from those. A repository that has another name is found by GitHub's redirect, and
`models.intake.announcements` writes its new one.
"""

from __future__ import annotations

INSTALLATION_NOW = """
    coalesce((SELECT own.id FROM installations own WHERE own.account_id = c.account_id AND own.left_at IS NULL
              ORDER BY own.event_at DESC NULLS LAST, own.id DESC LIMIT 1), c.installation_id)
"""
"""Of a claim `c`: the newest installation at its owner that GitHub knows; its own if there is none.

The newest is the one that an `installation` event told of last. Of those that only jobs named it is the largest id:
GitHub numbers them upwards, and an owner has one.
"""

REPOSITORY_ID = """
    coalesce(c.repository_id,
             (SELECT own.repository_id FROM jobs own WHERE own.id = c.job_id),
             (SELECT done.repository_id FROM executions x JOIN jobs done ON done.id = x.job_id
              WHERE x.claim_id = c.id ORDER BY x.id DESC LIMIT 1))
"""
"""Of a claim `c`: the id of the repository of its scope.

Of one that was made before claims kept it that of its job, else of the one it executed (a runner that is registered in
a repository executes that one's jobs only); NULL where those do not tell either.
"""

SCOPE_NOW = f"""
    CASE WHEN starts_with(c.scope, 'repos/')
         THEN coalesce('repos/' || (SELECT owner.login FROM accounts owner WHERE owner.id = c.account_id) || '/'
                       || split_part(c.scope, '/', 3), c.scope) || coalesce('#' || {REPOSITORY_ID}, '')
         ELSE coalesce('orgs/' || (SELECT owner.login FROM accounts owner
                                   WHERE owner.id = c.account_id AND c.scope IS NOT NULL), c.scope) END
"""
"""Of a claim `c`: where its runner is registered, by its owner's login of now, and by its repository's id if known."""
