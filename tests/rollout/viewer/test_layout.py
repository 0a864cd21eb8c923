"""Layout of a trajectory: blocks, folds, search hits, lines, tokens on their text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rollout.dump import read_dump
from rollout.tokens import HubTokenizer
from rollout.viewer.rows.columns import number_text, signed_text, visible
from rollout.viewer.rows.document import MAX_BODY_CHARS, blocks_of
from rollout.viewer.rows.pieces import (
    DecoderError,
    TokenPiece,
    decoded_pieces,
    find_tokenizer,
    heat,
    load_decoder,
    row_pieces,
    token_lists,
)
from rollout.viewer.widgets.tokens import piece_lines
from tests.rollout.viewer.conftest import verl_row

TEXT = st.text(alphabet=st.sampled_from("ab \n\t漢é\x1b🙂"), max_size=60)


@given(TEXT, st.integers(2, 12))
def test_tokens_are_laid_out_whole(text: str, width: int) -> None:
    pieces = [TokenPiece(part, "sampled") for part in re.split(r"(?<=b)", text)]
    lines = piece_lines(pieces, width)
    assert all(sum(cell_len(text) for _, text in line) <= width for line in lines)
    assert [piece for line in lines for piece, _ in line] == sorted(piece for line in lines for piece, _ in line)
    assert {piece for line in lines for piece, _ in line} == set(range(len(pieces)))


def test_what_a_terminal_would_obey_is_made_visible() -> None:
    text = "a\x1b[31m\x9b\r\n\ud800\u202e\u200b漢\x7f"
    assert visible(text) == "a␛[31m�␍␊���漢␡"
    assert len(visible(text)) == len(text)
    assert visible("".join(map(chr, range(0xD7FE, 0xE002)))).encode().count("�".encode()) == 0x800


def test_blocks_are_turns_with_their_calls(played: Path) -> None:
    record = list(read_dump(played / "9.jsonl"))[1]
    blocks = blocks_of(record)
    kinds = [block.kind for block in blocks]
    assert kinds[:2] == ["facts"] * 2
    turns = [block.title for block in blocks if block.kind != "prompt"][2:]
    assert turns == ["turn 1", "call 1: echo  program_error  waited 0.00 s  ran 0.25 s", "turn 2"]
    assert blocks[-2].kind == "failed_call"
    assert blocks[-2].body == "fail\n── answer ──\nTraceback\n\x1b[31mred"
    assert [block.folded for block in blocks if block.kind == "prompt"].count(False) == 1
    assert "score        0\n" in blocks[0].body
    assert record["request_id"] in blocks[1].body


def test_trajectory_that_failed_says_so(played: Path) -> None:
    facts = blocks_of(list(read_dump(played / "9.jsonl"))[5])[0].body
    assert "score        none" in facts
    assert "masked       no part of any mean" in facts
    assert "the engine went away" in facts


def test_plain_row_has_input_output_and_the_rest() -> None:
    blocks = blocks_of(verl_row(3, output="x" * (MAX_BODY_CHARS + 5)))
    assert [(block.title, block.folded) for block in blocks] == [
        ("trajectory", False),
        ("input", True),
        ("output", False),
        ("other fields", False),
    ]
    assert blocks[2].body.endswith("… 5 more characters: export the row to read them")
    assert '"pred": "six"' in blocks[3].body


@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": [None]}, [{"role": 3, "content": [4]}], True])
def test_no_row_breaks_the_view(value: object) -> None:
    names = ["messages", "tool_calls", "timings", "sampling", "segments", "turns", "response_mask", "reward_parts"]
    for name in names:
        record = verl_row(0) | {"messages": [{"role": "assistant", "content": "x"}]} | {name: value}
        assert blocks_of(record)[0].title == "trajectory"
        ids = {"prompt_ids": [1], "response_ids": [2], "response_mask": [1], "logprobs": [-1.0]}
        record = ids | record
        if not token_lists(record):
            decoded_pieces(record, lambda ids: "x" * len(ids))


def row_of(prompt: Sequence[int], ids: Sequence[int], mask: list[int]) -> dict[str, Any]:
    tokens = {"prompt_ids": list(prompt), "response_ids": list(ids), "response_mask": mask}
    return tokens | {"logprobs": [-0.1] * len(ids)}


@given(st.lists(st.integers(0, 49151), max_size=40))
def test_pieces_of_any_ids_are_the_ids(tokenizer: HubTokenizer, ids: list[int]) -> None:
    mask = [position % 2 for position in range(len(ids))]
    pieces = decoded_pieces(row_of([], ids, mask), tokenizer.decode)
    assert [piece.id for piece in pieces] == ids
    assert [piece.logprob for piece in pieces] == [-0.1 if bit else None for bit in mask]


@given(st.text(max_size=30))
def test_pieces_of_a_text_are_the_text(tokenizer: HubTokenizer, text: str) -> None:
    ids = tokenizer.encode(text.encode("utf-8", "replace").decode())
    whole = decoded_pieces(row_of(ids, ids, [1] * len(ids)), tokenizer.decode)
    assert "".join(piece.text for piece in whole) == tokenizer.decode(ids + ids)
    assert [piece.id for piece in whole] == list(ids + ids)


def test_pieces_tell_mask_logprobs_and_weights(played: Path, tokenizer: HubTokenizer, model_dir: Path) -> None:
    record = next(read_dump(played / "9.jsonl"))
    decode = load_decoder(find_tokenizer(str(model_dir)))
    pieces = decoded_pieces(record, decode)
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(record["prompt_ids"] + record["response_ids"])
    sampled = [piece for piece in pieces if piece.kind == "sampled"]
    assert len(sampled) == sum(record["response_mask"])
    assert {(piece.logprob, piece.weight_version) for piece in sampled} == {(-0.5, "scripted")}
    assert {piece.weight_version for piece in pieces if piece.kind != "sampled"} == {""}
    assert "☃ 漢字" in "".join(piece.text for piece in pieces if piece.kind == "tool")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "no token ids"),
        ({"prompt_ids": [1], "response_ids": [2], "response_mask": [1], "logprobs": []}, "logprobs has not the length"),
        ({"prompt_ids": ["a"], "response_ids": [], "response_mask": [], "logprobs": []}, "not numbers"),
    ],
)
def test_rows_whose_tokens_cannot_be_shown_say_why(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(DecoderError, match=problem):
        row_pieces(fields, None)


def test_tokenizer_is_found_by_setting_and_by_name(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in (model_dir.name, str(model_dir), str(model_dir / "tokenizer.json")):
        assert find_tokenizer(name) == model_dir
    for name in ("absent", "", "../x", str(tmp_path / "absent")):
        with pytest.raises(DecoderError, match="tokenizer"):
            find_tokenizer(name)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DecoderError, match=r"tokenizer\.json: is no tokenizer"):
        load_decoder(tmp_path)


def test_heat_follows_probability() -> None:
    assert [heat(value) for value in (0.0, -0.1, -0.5, -1.0, -2.0, -9.0, None, float("nan"))] == [
        0,
        0,
        1,
        2,
        3,
        4,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("value", "shown", "signed"),
    [
        (None, "-", "-"),
        (0.0, "0", "="),
        (1.0, "1", "+1"),
        (-0.5, "-0.500", "-0.500"),
        (1e-5, "1.00e-05", "+1.00e-05"),
        (1e20, "1.00e+20", "+1.00e+20"),
        (float("inf"), "inf", "+inf"),
    ],
)
def test_numbers_are_short(value: float | None, shown: str, signed: str) -> None:
    assert (number_text(value), signed_text(value)) == (shown, signed)
