"""Tokens: who holds one is a user, for as long as it is valid. Time comes from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.k8s.apiserver.problem import Problem
from tests.k8s.apiserver.rbac import ADMINS, User

__all__ = ["Accounts", "service_account"]

_AUTHENTICATED = "system:authenticated"
_ALL_ACCOUNTS = "system:serviceaccounts"


@dataclass(frozen=True, slots=True)
class _Token:
    user: User
    expires: float


def service_account(namespace: str, name: str) -> User:
    """As an API server names one."""
    groups = (_ALL_ACCOUNTS, f"{_ALL_ACCOUNTS}:{namespace}", _AUTHENTICATED)
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


class Accounts:
    """The tokens that have been given out. A token is never given twice."""

    def __init__(self, now: Callable[[], float], secret: Callable[[], str]) -> None:
        """`now`: seconds of any epoch. `secret`: a new unguessable word each time."""
        self._now = now
        self._secret = secret
        self._tokens: dict[str, _Token] = {}

    def admin(self) -> str:
        """A token that may do everything."""
        return self._issue(User("kubernetes-admin", (ADMINS, _AUTHENTICATED)), float("inf"))

    def issue(self, namespace: str, name: str, seconds: float) -> str:
        """One of a service account."""
        return self._issue(service_account(namespace, name), self._now() + seconds)

    def revoke(self, namespace: str, name: str) -> None:
        """The account is gone, and its tokens with it."""
        gone = service_account(namespace, name)
        self._tokens = {token: each for token, each in self._tokens.items() if each.user != gone}

    def user(self, token: str) -> User:
        """Who holds it. 401 for what was never given out or has expired."""
        found = self._tokens.get(token)
        if found is None or found.expires <= self._now():
            raise Problem(401, "Unauthorized", "Unauthorized")
        return found.user

    def _issue(self, user: User, expires: float) -> str:
        token = self._secret()
        self._tokens[token] = _Token(user, expires)
        return token
