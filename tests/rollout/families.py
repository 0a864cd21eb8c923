"""Real chat templates of several families over the real tokenizer at hand, extended by the families' own tokens.

The merges, and so what happens at the boundaries, are real ones; the way text is split before merging is Qwen's and
Llama 3's, which keep line breaks together.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, pre_tokenizers
from transformers import AddedToken

from rollout.tokens import HubTokenizer

FOLDER = Path(__file__).parents[1] / "data" / "templates"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = [
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
    "[ARGS]",
    "[CALL_ID]",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
]
_PLAIN = [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
]


@dataclass(frozen=True, slots=True)
class Family:
    """A template, and what is known of it."""

    file: str
    severity: str
    """As `rollout.tokens.probe.Severity` names it."""
    tool_format: str
    end: str = "<|im_end|>"
    bos: str = "<|im_start|>"
    eos: str = "<|im_end|>"
    calls: bool = False
    """Turns are given to the template as data."""

    def text(self) -> str | None:
        """The template; None when it is not here."""
        for folder in (FOLDER, Path(os.environ.get("FAIRBOX_TEMPLATES") or FOLDER)):
            if (path := folder / f"{self.file}.jinja").is_file():
                return path.read_text(encoding="utf-8")
        return None


_MISTRAL = {"end": "</s>", "bos": "<s>", "eos": "</s>", "calls": True}
_LLAMA = {"end": "<|eot_id|>", "bos": "<|begin_of_text|>", "eos": "<|eot_id|>"}
_DEEPSEEK = {"end": "<｜end▁of▁sentence｜>", "bos": "<｜begin▁of▁sentence｜>", "eos": "<｜end▁of▁sentence｜>"}
FAMILIES = {
    family.file: family
    for family in (
        Family("Qwen-Qwen2.5-7B-Instruct", "NONE", "hermes"),
        Family("Qwen-Qwen3-0.6B", "NONE", "hermes"),
        Family("Qwen-QwQ-32B", "TURN", "hermes"),
        Family("Qwen3-Coder", "NONE", "qwen3_coder"),
        Family("mistralai-Mistral-Nemo-Instruct-2407", "PROMPT", "mistral", **_MISTRAL),  # type: ignore[arg-type]
        Family("Mistral-Small-3.2-24B-Instruct-2506", "NONE", "mistral", **_MISTRAL),  # type: ignore[arg-type]
        Family("openai-gpt-oss-120b", "NONE", "gpt_oss", "<|call|>", "<|start|>", "<|return|>", calls=True),
        Family("deepseek-ai-DeepSeek-V3.1", "NONE", "hermes", **_DEEPSEEK),  # type: ignore[arg-type]
        Family("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "BETWEEN", "hermes", **_DEEPSEEK),  # type: ignore[arg-type]
        Family("meta-llama-Llama-3.1-8B-Instruct", "NONE", "llama3_json", **_LLAMA),  # type: ignore[arg-type]
        Family("meta-llama-Llama-3.2-3B-Instruct", "NONE", "llama3_json", **_LLAMA),  # type: ignore[arg-type]
        Family("GLM-4.6", "NONE", "glm45", "<|observation|>"),
    )
}


def extended_tokenizer(model_dir: Path) -> HubTokenizer:
    """The tokenizer of a model with every family's tokens."""
    made = HubTokenizer(model_dir)
    inner = made._tokenizer
    inner.add_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL], special_tokens=True)
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in _PLAIN])
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    inner.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return made


def family_tokenizer(extended: HubTokenizer, template: str, family: Family) -> HubTokenizer:
    """The extended tokenizer under a family's template; what structures turns is what the template names."""
    made = copy.copy(extended)
    made._template = template
    made._options = {"bos_token": family.bos, "eos_token": family.eos}
    added = extended._tokenizer.added_tokens_decoder.items()
    made._special = {t.content: i for i, t in added if t.content in template or t.content in (family.bos, family.eos)}
    return made
