"""GitHub's JSON formats: jobs, and webhook bodies with the fields of a real one.

The end of a body (repository, organization, sender, installation) is the same for all jobs of a repository. It is
encoded again only after a change, for example of a name. Only `workflow_job` is encoded for each delivery.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lab.github.entities import COMPLETED, WAITING, Account, Group, Job, Repository, Run, now, stamp

API = "https://api.github.com"
SITE = "https://github.com"
CREATED = "2024-01-15T09:30:00Z"

PERMISSIONS = {
    "actions": "read",
    "administration": "write",
    "metadata": "read",
    "organization_self_hosted_runners": "write",
}

EVENTS = ("workflow_job", "repository")

_USER_URLS = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
_REPOSITORY_URLS = {
    "forks_url": "/forks",
    "keys_url": "/keys{/key_id}",
    "collaborators_url": "/collaborators{/collaborator}",
    "teams_url": "/teams",
    "hooks_url": "/hooks",
    "issue_events_url": "/issues/events{/number}",
    "events_url": "/events",
    "assignees_url": "/assignees{/user}",
    "branches_url": "/branches{/branch}",
    "tags_url": "/tags",
    "blobs_url": "/git/blobs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "trees_url": "/git/trees{/sha}",
    "statuses_url": "/statuses/{sha}",
    "languages_url": "/languages",
    "stargazers_url": "/stargazers",
    "contributors_url": "/contributors",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "commits_url": "/commits{/sha}",
    "git_commits_url": "/git/commits{/sha}",
    "comments_url": "/comments{/number}",
    "issue_comment_url": "/issues/comments{/number}",
    "contents_url": "/contents/{+path}",
    "compare_url": "/compare/{base}...{head}",
    "merges_url": "/merges",
    "archive_url": "/{archive_format}{/ref}",
    "downloads_url": "/downloads",
    "issues_url": "/issues{/number}",
    "pulls_url": "/pulls{/number}",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "labels_url": "/labels{/name}",
    "releases_url": "/releases{/id}",
    "deployments_url": "/deployments",
}


def user(*, user_id: int, login: str, kind: str) -> dict[str, Any]:
    """Return an account in the format of a repository's owner and of a webhook's sender."""
    return {
        "login": login,
        "id": user_id,
        "node_id": node_id("U", user_id),
        "avatar_url": f"https://avatars.githubusercontent.com/u/{user_id}?v=4",
        "gravatar_id": "",
        "url": f"{API}/users/{login}",
        "html_url": f"{SITE}/{login}",
        **{key: f"{API}/users/{login}{path}" for key, path in _USER_URLS.items()},
        "type": kind,
        "user_view_type": "public",
        "site_admin": False,
    }


def organization(account: Account) -> dict[str, Any]:
    """Return an organisation in the format of a webhook."""
    url = f"{API}/orgs/{account.login}"
    return {
        "login": account.login,
        "id": account.id,
        "node_id": node_id("O", account.id),
        "url": url,
        "repos_url": f"{url}/repos",
        "events_url": f"{url}/events",
        "hooks_url": f"{url}/hooks",
        "issues_url": f"{url}/issues",
        "members_url": f"{url}/members{{/member}}",
        "public_members_url": f"{url}/public_members{{/member}}",
        "avatar_url": f"https://avatars.githubusercontent.com/u/{account.id}?v=4",
        "description": None,
    }


def repository_view(repository: Repository) -> dict[str, Any]:
    """Return a repository in the format of a webhook."""
    account, full_name = repository.account, repository.full_name
    url = f"{API}/repos/{full_name}"
    return {
        "id": repository.id,
        "node_id": node_id("R", repository.id),
        "name": repository.name,
        "full_name": full_name,
        "private": repository.private,
        "owner": user(user_id=account.id, login=account.login, kind=account.type),
        "html_url": f"{SITE}/{full_name}",
        "description": "A repository of the lab",
        "fork": False,
        "url": url,
        **{key: f"{url}{path}" for key, path in _REPOSITORY_URLS.items()},
        "created_at": CREATED,
        "updated_at": CREATED,
        "pushed_at": CREATED,
        "git_url": f"git://github.com/{full_name}.git",
        "ssh_url": f"git@github.com:{full_name}.git",
        "clone_url": f"{SITE}/{full_name}.git",
        "svn_url": f"{SITE}/{full_name}",
        "homepage": None,
        "size": 1024,
        "stargazers_count": 0,
        "watchers_count": 0,
        "language": "Python",
        "has_issues": True,
        "has_projects": True,
        "has_downloads": True,
        "has_wiki": True,
        "has_pages": False,
        "has_discussions": False,
        "forks_count": 0,
        "mirror_url": None,
        "archived": False,
        "disabled": False,
        "open_issues_count": 0,
        "license": None,
        "allow_forking": True,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "visibility": "private" if repository.private else "public",
        "forks": 0,
        "open_issues": 0,
        "watchers": 0,
        "default_branch": "main",
        "custom_properties": {},
    }


def app_view(*, app_id: str, name: str, owner: Account | None, permissions: Any, events: Any) -> dict[str, Any]:
    """Return an App in the format of the REST API."""
    slug = name.lower().replace(" ", "-")
    account = owner or Account(id=1, login="lab", type="Organization", installation_id=0)
    return {
        "id": 77,
        "slug": slug,
        "node_id": node_id("A", 77),
        "client_id": app_id,
        "owner": user(user_id=account.id, login=account.login, kind=account.type),
        "name": name,
        "description": None,
        "external_url": SITE,
        "html_url": f"{SITE}/apps/{slug}",
        "created_at": CREATED,
        "updated_at": CREATED,
        "permissions": dict(permissions),
        "events": list(events),
    }


def installation_view(
    account: Account, *, app_id: str, permissions: Any = PERMISSIONS, events: Any = EVENTS
) -> dict[str, Any]:
    """Return an installation of the App in the format of the REST API, which webhooks share."""
    url = f"{API}/app/installations/{account.installation_id}"
    return {
        "id": account.installation_id,
        "account": user(user_id=account.id, login=account.login, kind=account.type),
        "access_tokens_url": f"{url}/access_tokens",
        "repositories_url": f"{API}/installation/repositories",
        "html_url": f"{SITE}/settings/installations/{account.installation_id}",
        "app_id": 77,
        "client_id": app_id,
        "app_slug": "ostler-lab",
        "target_id": account.id,
        "target_type": account.type,
        "repository_selection": "all",
        "permissions": dict(permissions),
        "events": list(events),
        "created_at": CREATED,
        "updated_at": CREATED,
        "single_file_name": None,
        "has_multiple_single_files": False,
        "single_file_paths": [],
        "suspended_by": user(user_id=1001, login="lab-developer", kind="User") if account.suspended else None,
        "suspended_at": CREATED if account.suspended else None,
    }


def installation_webhook(action: str, account: Account, *, app_id: str) -> dict[str, Any]:
    """Return the body of an `installation` webhook."""
    return {
        "action": action,
        "installation": installation_view(account, app_id=app_id) | {"updated_at": stamp(now())},
        "repositories": [
            {
                "id": each.id,
                "node_id": node_id("R", each.id),
                "name": each.name,
                "full_name": each.full_name,
                "private": each.private,
            }
            for each in account.repositories.values()
        ],
        "requester": None,
        "sender": user(user_id=1001, login="lab-developer", kind="User"),
    }


def renamed_webhook(former: str, account: Account) -> dict[str, Any]:
    """Return the body of an `organization` webhook about a new login."""
    member = user(user_id=1001, login="lab-developer", kind="User")
    return {
        "action": "renamed",
        "changes": {"login": {"from": former}},
        "membership": {
            "url": f"{API}/orgs/{account.login}/memberships/lab-developer",
            "state": "active",
            "role": "admin",
            "organization_url": f"{API}/orgs/{account.login}",
            "user": member,
        },
        "organization": organization(account),
        "sender": member,
        "installation": _installation_reference(account),
    }


def target_renamed_webhook(former: str, account: Account) -> dict[str, Any]:
    """Return the body of an `installation_target` webhook about a new login."""
    return {
        "action": "renamed",
        "account": user(user_id=account.id, login=account.login, kind=account.type),
        "changes": {"login": {"from": former}},
        "target_type": account.type,
        "sender": user(user_id=1001, login="lab-developer", kind="User"),
        "installation": _installation_reference(account),
    }


def repository_renamed_webhook(former: str, repository: Repository, *, at: str) -> dict[str, Any]:
    """Return the body of a `repository` webhook about a new name."""
    account = repository.account
    body = {
        "action": "renamed",
        "changes": {"repository": {"name": {"from": former}}},
        "repository": repository_view(repository) | {"updated_at": at},
        "sender": user(user_id=1001, login="lab-developer", kind="User"),
        "installation": _installation_reference(account),
    }
    return body | ({"organization": organization(account)} if account.type == "Organization" else {})


def _installation_reference(account: Account) -> dict[str, Any]:
    return {
        "id": account.installation_id,
        "node_id": node_id("MDIzOkludGVncmF0aW9uSW5zdGFsbGF0aW9u", account.installation_id),
    }


def tail_of(repository: Repository) -> bytes:
    """Return the constant end of a webhook body, from the comma after `workflow_job` to the last brace."""
    account = repository.account
    tail: dict[str, Any] = {"repository": repository_view(repository)}
    if account.type == "Organization":
        tail["organization"] = organization(account)
    tail["sender"] = user(user_id=1001, login="lab-developer", kind="User")
    tail["installation"] = _installation_reference(account)
    return b"," + json.dumps(tail).encode()[1:]


def job_view(job: Job) -> dict[str, Any]:
    """Return a job in the format of the REST API, which webhooks share."""
    full_name = job.repository.full_name
    url = f"{API}/repos/{full_name}"
    run_html = f"{SITE}/{full_name}/actions/runs/{job.run_id}"
    runner = job.runner
    return {
        "id": job.id,
        "run_id": job.run_id,
        "workflow_name": job.workflow_name,
        "head_branch": job.head_branch,
        "run_url": f"{url}/actions/runs/{job.run_id}",
        "run_attempt": job.run_attempt,
        "node_id": node_id("CR", job.id),
        "head_sha": _sha(job.run_id),
        "url": f"{url}/actions/jobs/{job.id}",
        "html_url": f"{run_html}/job/{job.id}",
        "status": job.status,
        "conclusion": job.conclusion,
        "created_at": stamp(job.created_at),
        # Like the real GitHub, a job that never started shows its creation time here (octokit/webhooks).
        "started_at": stamp(job.started_at or job.created_at),
        "completed_at": stamp(job.completed_at),
        "name": job.name,
        "steps": _steps(job),
        "check_run_url": f"{url}/check-runs/{job.id}",
        "labels": list(job.labels),
        "runner_id": runner.id if runner else None,
        "runner_name": runner.name if runner else None,
        "runner_group_id": runner.group_id if runner else None,
        "runner_group_name": _group_name(job),
    }


def _group_name(job: Job) -> str | None:
    if job.runner is None:
        return None
    group = job.repository.account.groups.get(job.runner.group_id)
    return "Default" if group is None else group.name


def check_run_view(number: int, repository: Repository, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check run in the format of the REST API. `given` are the fields that its App has set."""
    url = f"{API}/repos/{repository.full_name}/check-runs/{number}"
    output = {"title": None, "summary": None, "text": None, **given.get("output", {})}
    return {
        "id": number,
        "node_id": node_id("CR", number),
        "external_id": "",
        "head_sha": given["head_sha"],
        "name": given["name"],
        "url": url,
        "html_url": f"{SITE}/{repository.full_name}/runs/{number}",
        "details_url": None,
        "status": given.get("status", "queued"),
        "conclusion": given.get("conclusion"),
        "started_at": None,
        "completed_at": None,
        "output": {**output, "annotations_count": 0, "annotations_url": f"{url}/annotations"},
        "check_suite": None,
        "app": None,
        "pull_requests": [],
    }


def run_view(run: Run) -> dict[str, Any]:
    """Return a workflow run in the format of the REST API."""
    first = run.jobs[0]
    repository = first.repository
    url = f"{API}/repos/{repository.full_name}/actions/runs/{run.id}"
    html_url = f"{SITE}/{repository.full_name}/actions/runs/{run.id}"
    home = repository_view(repository)
    changed = max(moment for job in run.jobs for moment in (job.created_at, job.started_at, job.completed_at) if moment)
    return {
        "id": run.id,
        "name": first.workflow_name,
        "node_id": node_id("WFR", run.id),
        "head_branch": first.head_branch,
        "head_sha": _sha(run.id),
        "path": ".github/workflows/ci.yml@main",
        "display_title": first.workflow_name,
        "run_number": run.id,
        "event": run.event,
        "status": run.status,
        "conclusion": run.conclusion,
        "workflow_id": repository.id,
        "check_suite_id": run.id,
        "check_suite_node_id": node_id("CS", run.id),
        "url": url,
        "html_url": html_url,
        "pull_requests": _pull_requests(run, repository),
        "created_at": stamp(first.created_at),
        "updated_at": stamp(changed),
        "actor": user(user_id=1001, login="lab-developer", kind="User"),
        "run_attempt": max(job.run_attempt for job in run.jobs),
        "referenced_workflows": [],
        "run_started_at": stamp(first.created_at),
        "triggering_actor": user(user_id=1001, login="lab-developer", kind="User"),
        "jobs_url": f"{url}/jobs",
        "logs_url": f"{url}/logs",
        "check_suite_url": f"{API}/repos/{repository.full_name}/check-suites/{run.id}",
        "artifacts_url": f"{url}/artifacts",
        "cancel_url": f"{url}/cancel",
        "rerun_url": f"{url}/rerun",
        "previous_attempt_url": None,
        "workflow_url": f"{API}/repos/{repository.full_name}/actions/workflows/{repository.id}",
        "head_commit": {
            "id": _sha(run.id),
            "tree_id": _sha(run.id + 1),
            "message": "A change",
            "timestamp": stamp(first.created_at),
            "author": {"name": "Lab", "email": "lab@example.com"},
            "committer": {"name": "Lab", "email": "lab@example.com"},
        },
        "repository": home,
        "head_repository": home if run.fork is None else _fork(home, *run.fork),
    }


def _fork(home: dict[str, Any], fork_id: int, full_name: str) -> dict[str, Any]:
    """Return a fork of a repository in the format of a run's head repository."""
    login, _, name = full_name.partition("/")
    owner = user(user_id=fork_id + 1, login=login, kind="User")
    own = {"id": fork_id, "node_id": node_id("R", fork_id), "name": name, "full_name": full_name}
    return home | own | {"owner": owner, "fork": True, "html_url": f"{SITE}/{full_name}"}


def _pull_requests(run: Run, repository: Repository) -> list[dict[str, Any]]:
    """Return the open pull requests of a run.

    Like GitHub, this function lists only pull requests whose head is in the same repository.
    """
    if run.fork is not None or not run.event.startswith("pull_request"):
        return []
    url = f"{API}/repos/{repository.full_name}"
    reference = {"sha": _sha(run.id), "repo": {"id": repository.id, "url": url, "name": repository.name}}
    return [
        {
            "id": run.id,
            "number": 1,
            "url": f"{url}/pulls/1",
            "head": reference | {"ref": run.jobs[0].head_branch},
            "base": reference | {"ref": "main"},
        }
    ]


def group_view(group: Group, account: Account) -> dict[str, Any]:
    """Return a runner group in the format of the REST API."""
    url = f"{API}/orgs/{account.login}/actions/runner-groups/{group.id}"
    selected = {"selected_repositories_url": f"{url}/repositories"} if group.visibility == "selected" else {}
    return selected | {
        "id": group.id,
        "name": group.name,
        "visibility": group.visibility,
        "default": group.id == 1,
        "runners_url": f"{url}/runners",
        "hosted_runners_url": f"{url}/hosted-runners",
        "inherited": False,
        "allows_public_repositories": group.public,
        "restricted_to_workflows": False,
        "selected_workflows": [],
        "workflow_restrictions_read_only": False,
    }


def _sha(number: int) -> str:
    return hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest()


def webhook_head(action: str, job: Job) -> bytes:
    """Return the beginning of a webhook body, up to the end of `workflow_job`."""
    view = job_view(job)
    if job.runner is None and job.status == COMPLETED:
        # A job that was cancelled while it was queued has zeros and empty strings instead of nulls.
        view |= {"runner_id": 0, "runner_name": "", "runner_group_id": 0, "runner_group_name": ""}
    elif job.status == WAITING:
        view |= {"runner_id": 0, "runner_name": ""}
    return f'{{"action":"{action}","workflow_job":{json.dumps(view)}'.encode()


def node_id(kind: str, number: int) -> str:
    """Return an opaque global id."""
    return f"{kind}_{base64.urlsafe_b64encode(str(number).encode()).decode().rstrip('=')}"


def _steps(job: Job) -> list[dict[str, Any]]:
    if job.started_at is None:
        return []
    started = job.started_at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    completed = job.completed_at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" if job.completed_at else None
    status, conclusion = ("completed", job.conclusion) if job.completed_at else ("in_progress", None)
    return [
        {
            "name": "Set up job",
            "status": status,
            "conclusion": conclusion,
            "number": 1,
            "started_at": started,
            "completed_at": completed,
        }
    ]
