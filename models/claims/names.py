"""SQL for the present owner, installation and repository of a claim, as needed for requests to GitHub.

A claim stores the scope and the installation that it was made with, and a claim that has ended is never changed. Since
then, the owner might have changed its login, and the App might have a new installation there. Webhooks update both in
other tables, so the SQL reads them there. GitHub redirects from the former name of a repository, and
`models.intake.announcements` writes its new name.
"""

from __future__ import annotations

INSTALLATION_NOW = """
    coalesce((SELECT own.id FROM installations own WHERE own.account_id = c.account_id AND own.left_at IS NULL
              ORDER BY own.event_at DESC NULLS LAST, own.id DESC LIMIT 1), c.installation_id)
"""
"""SQL on a claim `c`: the owner's newest working installation, or the claim's own installation if there is none.

The newest installation is the one with the latest `installation` event. Installations without such an event come last,
the largest id first, because GitHub assigns rising ids.
"""

REPOSITORY_ID = """
    coalesce(c.repository_id,
             (SELECT own.repository_id FROM jobs own WHERE own.id = c.job_id),
             (SELECT done.repository_id FROM executions x JOIN jobs done ON done.id = x.job_id
              WHERE x.claim_id = c.id ORDER BY x.id DESC LIMIT 1))
"""
"""SQL on a claim `c`: the id of the repository in its scope, or NULL if it is not known.

Older claims did not store this id. For them it is the repository of the claim's job, or else of the last job that the
claim executed. A runner that is registered in a repository executes only jobs of that repository.
"""

SCOPE_NOW = f"""
    CASE WHEN starts_with(c.scope, 'repos/')
         THEN coalesce('repos/' || (SELECT owner.login FROM accounts owner WHERE owner.id = c.account_id) || '/'
                       || split_part(c.scope, '/', 3), c.scope) || coalesce('#' || {REPOSITORY_ID}, '')
         ELSE coalesce('orgs/' || (SELECT owner.login FROM accounts owner
                                   WHERE owner.id = c.account_id AND c.scope IS NOT NULL), c.scope) END
"""
"""SQL on a claim `c`: the scope of its runner, with the owner's present login and, if known, the repository's id."""
