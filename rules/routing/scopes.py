"""Scopes: the organisation or repository that a runner is registered in.

A runner of an organisation can serve all repositories of the organisation that its runner group admits. GitHub
registers no runners for a whole user account. A runner for a job of a user account is therefore registered in the
repository of the job (GitHub docs, "REST API endpoints for self-hosted runners").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self

from ostler.errors import Invalid

# A login or repository name becomes part of a URL path, so no other characters are allowed.
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}")
_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Scope:
    """An organisation (`repository_name` is None) or a repository. `str()` returns the form that tables contain.

    If `repository_id` is set, calls to GitHub use the id, because another repository might have the name now. The form
    in tables appends the id to the name, as in `repos/ada/app#5`.

    Raises `Invalid` if the login or the repository name is malformed.
    """

    login: str
    repository_name: str | None = None
    repository_id: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _LOGIN.fullmatch(self.login):
            raise Invalid(
                "the login of a scope must consist of 1 to 100 letters, digits, - and _, and must begin with a letter "
                f"or digit: found {self.login!r}"
            )
        if self.repository_name is not None and not _NAME.fullmatch(self.repository_name):
            raise Invalid(
                "the repository name of a scope must consist of 1 to 100 letters, digits, ., - and _, "
                f"and must not be . or ..: found {self.repository_name!r}"
            )

    @classmethod
    def organization(cls, login: str) -> Self:
        """Return the scope of an organisation.

        Raises `Invalid` if the login is malformed.
        """
        return cls(login)

    @classmethod
    def repository(cls, full_name: str) -> Self:
        """Return the scope of a repository, given as `owner/name`.

        Raises `Invalid` if the text is malformed.
        """
        login, slash, name = full_name.partition("/")
        if not slash:
            raise Invalid(f"a repository must be given as owner/name: found {full_name!r}")
        return cls(login, name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the scope that was written by `str()`.

        Raises `Invalid` if `str()` cannot have written the text.
        """
        kind, _, rest = text.partition("/")
        if kind == "orgs":
            return cls.organization(rest)
        if kind == "repos":
            name, mark, number = rest.partition("#")
            if mark and not _ID.fullmatch(number):
                raise Invalid(
                    f"the id of a repository must be a number of 1 to 18 digits: found {number!r} in {text!r}"
                )
            named = cls.repository(name)
            return cls(named.login, named.repository_name, int(number) if mark else None)
        raise Invalid(f"a scope must begin with orgs/ or repos/: found {text!r}")

    @property
    def path(self) -> str:
        """Return the prefix of the scope's API paths, such as `/orgs/acme`."""
        return f"/{self}" if self.repository_id is None else f"/repositories/{self.repository_id}"

    @property
    def web_path(self) -> str:
        """Return the path of the organisation or repository in a browser, such as `acme/app`."""
        return self.login if self.repository_name is None else f"{self.login}/{self.repository_name}"

    @property
    def certain(self) -> bool:
        """Return whether a call with the scope's path can reach only the owner that the scope was made for.

        Another repository might get the name of a repository later, so a path with a repository's name is not certain.
        Another organisation might get the name of an organisation too. Calls of the old installation then fail, so the
        path of an organisation is certain.
        """
        return self.repository_name is None or self.repository_id is not None

    def covers(self, full_name: str) -> bool:
        """Return whether the repository `full_name` (`owner/name`, ignoring case) is in this scope.

        GitHub gives the jobs of a repository to no runner of another scope.
        """
        mine, other = self.web_path.lower(), full_name.lower()
        return mine in {other, other.partition("/")[0]}

    def __str__(self) -> str:
        if self.repository_name is None:
            return f"orgs/{self.login}"
        number = "" if self.repository_id is None else f"#{self.repository_id}"
        return f"repos/{self.login}/{self.repository_name}{number}"
