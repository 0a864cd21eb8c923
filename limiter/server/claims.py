"""Proofs that go with what the limiter gives, so that what comes back after a restart is what was given, and to whom.

A proof is a keyed hash (BLAKE2b) over what was given and the session that has it. The key is that of the leadership, so
that each leader knows the proofs of those before it. A proof shows that something was given, not that it was not used
since: the core lets each count once, for a stated time, within the limit.
"""

from __future__ import annotations

import hashlib
import hmac

from limiter.core import LeaseId, Ticket

_BYTES = 16
"""Bytes of a proof: nobody guesses one of 2^128 over a network."""


class Claims:
    """Makes and checks proofs. `key`: at most 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._hash = hashlib.blake2b(key=key, digest_size=_BYTES)

    def ticket_proof(self, session_id: str, ticket: tuple[int, int], bucket: str, tenant: str) -> bytes:
        """Proof of a place in the queue of a bucket, given to a session for a tenant."""
        return self._proof(f"ticket {session_id} {ticket[0]} {ticket[1]} {bucket} {tenant}")

    def hold_proof(self, session_id: str, lease: tuple[int, int], bucket: str, tokens: int, tenant: str) -> bytes:
        """Proof of a lease with a hold time. `tenant`: that of the session's token."""
        return self._proof(f"hold {session_id} {lease[0]} {lease[1]} {bucket} {tokens} {tenant}")

    def owns_ticket(self, proof: bytes, session_id: str, ticket: Ticket, bucket: str, tenant: str) -> bool:
        """Says whether it is the proof of that place."""
        return hmac.compare_digest(proof, self.ticket_proof(session_id, ticket, bucket, tenant))

    def owns_hold(self, proof: bytes, session_id: str, lease: LeaseId, bucket: str, tokens: int, tenant: str) -> bool:
        """Says whether it is the proof of that lease."""
        return hmac.compare_digest(proof, self.hold_proof(session_id, lease, bucket, tokens, tenant))

    def _proof(self, text: str) -> bytes:
        # Only the last word, the tenant, may have spaces in it, so that no two things have one text.
        hashed = self._hash.copy()
        hashed.update(text.encode())
        return hashed.digest()
