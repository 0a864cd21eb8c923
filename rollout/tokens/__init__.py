"""Exact tokens: segments, trajectories, and the chat template's boundaries between them."""

from rollout.tokens.chat import ChatTemplate, ChatTemplateError
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.tokenizer import HubTokenizer, Message, Tokenizer
from rollout.tokens.trajectory import TokenBuilder, Trajectory

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "HubTokenizer",
    "Message",
    "Segment",
    "SegmentKind",
    "TokenBuilder",
    "Tokenizer",
    "Trajectory",
]
