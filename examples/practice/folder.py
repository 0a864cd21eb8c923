"""Writes a practice folder: a model that has been warmed up, and problems to train and to evaluate it on.

    FOLDER/model/        a Llama of 1.8 million weights, its tokenizer and its chat template, as on the Hugging Face hub
    FOLDER/train.jsonl   problems in verl's format
    FOLDER/test.jsonl    others, which the warm-up has not seen either

The folder is whole or not there. The same settings and seed give the same folder on the same machine.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.practice.problems import Problem, draw, row_of
from examples.practice.tokenizer import END, PADDING, write_tokenizer
from examples.practice.warm_up import WarmUp, Writer, answer_text, call_text, warm_up
from fairbox.errors import FairboxError
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools.code import CodeInterpreter

_TEXTS = 2000
"""Problems whose conversations the tokenizer learns from."""
_TRAIN, _TEST = 2000, 200
_LONGEST = 512
"""Ids of a context: four times what a conversation of one call has."""


def write_practice(folder: Path, warm: WarmUp | None = None, *, seed: int = 0) -> float:
    """Writes the folder, which must not be there. Returns the last loss of the warm-up, which takes one to two minutes
    on a core. Raises FairboxError where it can't be written."""
    if folder.exists():
        raise FairboxError(f"{folder}: is there already; name a new folder")
    from safetensors import SafetensorError

    beside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        generator = random.Random(seed)
        loss = _write_model(beside / "model", warm or WarmUp(), generator, seed)
        _write_rows(beside / "train.jsonl", draw(_TRAIN, generator))
        _write_rows(beside / "test.jsonl", draw(_TEST, generator, held=True))
        beside.rename(folder)
    except OSError as error:
        raise FairboxError(f"{folder}: can't be written: {error.strerror or error}") from None
    except SafetensorError as error:
        raise FairboxError(f"{folder}: can't be written: {error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return loss


def _write_model(folder: Path, warm: WarmUp, generator: random.Random, seed: int) -> float:
    import torch

    tools = [CodeInterpreter.default_schema.openai()]
    vocabulary = write_tokenizer(_texts(draw(_TEXTS, generator), tools), folder)
    chat = ChatTemplate(HubTokenizer(folder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(vocabulary, chat.special_tokens)
        loss = warm_up(model, Writer(chat, tools, warm.call_share), warm, generator)
    model.save_pretrained(folder)
    return loss


def _texts(problems: Sequence[Problem], tools: Sequence[dict[str, Any]]) -> list[str]:
    """Texts that conversations consist of, between the special tokens."""
    name = str(tools[0]["function"]["name"])
    arguments = ", ".join(tools[0]["function"]["parameters"]["properties"])
    found = [f"tools\n{name}({arguments})", "assistant\n"] * len(problems)
    for problem in problems:
        found += [f"user\n{problem.question}", call_text(problem, name), f"tool\n{problem.answer}"]
        found.append(answer_text(problem.answer))
    return found


def _new_model(vocabulary: int, special: Mapping[str, int]) -> Any:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ends = {"eos_token_id": special[END], "pad_token_id": special[PADDING]}
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=_LONGEST,
        tie_word_embeddings=True,
        # Wavelengths of this context and not of one of thousands: copying is learned in half of the steps.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        bos_token_id=None,
        **ends,
    )
    model = LlamaForCausalLM(config).float()
    model.generation_config = GenerationConfig(**ends)
    return model


def _write_rows(path: Path, problems: Sequence[Problem]) -> None:
    path.write_text("".join(json.dumps(row_of(problem)) + "\n" for problem in problems), encoding="utf-8")
