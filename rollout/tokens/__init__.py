"""Exact tokens: segments, trajectories, and the chat template's boundaries between them."""

from rollout.tokens.chat import ChatTemplate, Rewrites
from rollout.tokens.conversation import CallRef
from rollout.tokens.drift import DriftCounter, DriftKind
from rollout.tokens.segment import Segment, SegmentError, SegmentKind
from rollout.tokens.tokenizer import ChatTemplateError, HubTokenizer, Message
from rollout.tokens.trajectory import TokenBuilder, Trajectory

__all__ = [
    "CallRef",
    "ChatTemplate",
    "ChatTemplateError",
    "DriftCounter",
    "DriftKind",
    "HubTokenizer",
    "Message",
    "Rewrites",
    "Segment",
    "SegmentError",
    "SegmentKind",
    "TokenBuilder",
    "Trajectory",
]
