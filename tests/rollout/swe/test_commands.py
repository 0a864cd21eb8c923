"""`fairbox data swebench` and `mine` as a person runs them, with a hub on loopback."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from rollout.cli import main
from rollout.data.swe.build import build
from rollout.data.swe.rows import write_search_tasks
from tests.executor.repositories import commit, new
from tests.rollout.swe.test_build import OLD, PATCH, row


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    records = [row(instance_id=f"i{number}") for number in range(10)] + [row(problem_statement="")]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_rows_of_a_file_are_split_and_what_is_left_out_is_named(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "swebench", f"input={rows}", "validation=0.2", "dialect=locagent"]
    for out in ("one", "two"):
        assert main([*words, f"out={tmp_path / out}"]) == 0
    said = capsys.readouterr().out
    assert "10 tasks, 0 with file_changes, of 11 rows" in said
    assert "1 blank statement" in said
    for name, count in (("train", 8), ("validation", 2)):
        files = [tmp_path / out / f"{name}.parquet" for out in ("one", "two")]
        assert parquet.read_table(files[0]).num_rows == count
        assert files[0].read_bytes() == files[1].read_bytes()
    left = [json.loads(line) for line in (tmp_path / "one" / "left_out.jsonl").read_text().splitlines()]
    assert left == [
        {"where": f"{rows}:11", "instance_id": "i", "why": "blank statement", "problem": "problem_statement is blank"}
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["swebench", "input=absent.jsonl", "out=o"],
            "input is 'absent.jsonl', which is neither a file nor",
        ),
        (["swebench", "input=ROWS", "out=o", "validation=1.5"], "validation is 1.5, must be a count, or a fraction"),
        (["swebench", "input=ROWS", "out=o", "repos=absent"], "repos is 'absent', which is no folder"),
        (["swebench", "input=ROWS", "out=o", "limit=0"], "limit is 0, must be at least 1"),
        (["swebench", "input=ROWS", "out=OUT"], "validation is 100, which of 10 rows leaves none to train on"),
        (["swebench", "input=ROWS", "out=OUT", "need_truth=true"], "no row became a task"),
        (["mine", "out=o"], "repo"),
        (["mine", "out=o", "repo=.", "name=x"], "name is 'x', must be like OWNER/NAME"),
        (["unknown"], "'unknown' is not a subcommand; there are: "),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: list[str], problem: str, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("ROWS", str(rows)).replace("OUT", str(tmp_path / "out")) for word in words]
    assert main(["data", *words]) in (1, 2)
    assert problem in capsys.readouterr().err


def test_mine_and_swebench_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = new(tmp_path / "local__proj")
    commit(repository, "first", {"p/m.py": OLD})
    for number in range(2, 7):
        message = f"The function must give {number}, and nothing else"
        commit(repository, message, {"p/m.py": OLD.replace("1", str(number))})
    assert main(["data", "mine", f"repo={repository}", "name=local/proj", f"out={tmp_path / 'out'}"]) == 0
    assert "5 tasks of 6 commits" in capsys.readouterr().out
    train = tmp_path / "out" / "train.parquet"
    again = ["data", "swebench", f"repos={tmp_path}", f"out={tmp_path / 'again'}", "validation=0"]
    assert main([*again, f"input={train}"]) == 0
    assert "truth made from repositories for 5\n5 tasks in" in capsys.readouterr().out
    records = parquet.read_table(train).to_pylist()
    records[0]["file_changes"][0]["changes"]["edited_entities"] = ["p/m.py:other"]
    changed = tmp_path / "changed.parquet"
    write_search_tasks(changed, build(("", record) for record in records).tasks)
    assert main([*again, f"input={changed}"]) == 0
    assert f"{records[0]['instance_id']}: had another truth, the made one is taken" in capsys.readouterr().out


def test_a_repository_that_is_there_and_not_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "repos" / "o__damaged" / ".git").mkdir(parents=True)
    commit(new(tmp_path / "elsewhere"), "base", {"p/m.py": OLD})
    (tmp_path / "repos" / "o__linked").symlink_to(tmp_path / "elsewhere")
    rows = [
        row(instance_id=name, repo=f"o/{name}", base_commit=None) for name in ("damaged", "linked", "absent", "one")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    repos = tmp_path / "repos"
    words = [f"input={tmp_path / 'rows.jsonl'}", f"repos={repos}", f"out={tmp_path / 'out'}", "validation=1"]
    assert main(["data", "swebench", *words]) == 0
    linked, damaged = sorted(capsys.readouterr().err.splitlines(), reverse=True)
    where = (tmp_path / "elsewhere").resolve()
    assert linked == f"fairbox data swebench: {repos / 'o__linked'} leads out of the folder, to {where}: move it here"
    assert damaged.startswith(
        f"fairbox data swebench: {repos / 'o__damaged'} git rev-parse: fatal: not a git repository"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_repository_of_another_user_is_named_with_what_lets_git_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new(tmp_path / "repos" / "o__proj")
    commit(repository, "base", {"p/m.py": OLD})
    os.chown(repository, 12345, 12345)
    os.chown(repository / ".git", 12345, 12345)
    monkeypatch.setenv("HOME", str(tmp_path))  # the user's own configuration may declare everything safe
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    rows = [row(instance_id=name, repo="o/proj", base_commit=None) for name in ("a", "b")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    words = [f"input={tmp_path / 'rows.jsonl'}", f"repos={repository.parent}", f"out={tmp_path / 'out'}"]
    assert main(["data", "swebench", *words, "validation=1"]) == 0
    assert capsys.readouterr().err == (
        f"fairbox data swebench: {repository} belongs to another user: "
        f"`git config --global --add safe.directory {repository.resolve()}` lets git read it\n"
    )


class _Hub(http.server.BaseHTTPRequestHandler):
    """Hub that answers requests for parquet files; `content` is the content of the one file."""

    content = b""
    asked: list[tuple[str, str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, self.headers.get("Authorization")))
        path = self.path.partition("?")[0]
        entry = {"type": "file", "path": "default/train/0000.parquet", "oid": "a" * 40, "size": len(self.content)}
        answers = {
            "/api/datasets/o/d/tree/refs%2Fconvert%2Fparquet": json.dumps([entry]).encode(),
            "/api/datasets/o/none/tree/refs%2Fconvert%2Fparquet": b"[]",
            "/datasets/o/d/resolve/refs%2Fconvert%2Fparquet/default/train/0000.parquet": self.content,
        }
        answer = answers.get(path)
        self.send_response(404 if answer is None else 200)
        self.send_header("ETag", f'"{"a" * 40}"')
        self.send_header("X-Repo-Commit", "b" * 40)
        self.send_header("Content-Length", str(len(answer or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer or b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[type[_Hub], Callable[..., subprocess.CompletedProcess[str]]]]:
    """A hub, and `fairbox data swebench` in a process that knows it: its library reads the variables when imported."""
    write_search_tasks(tmp_path / "hub.parquet", build([("", row(patch=PATCH))]).tasks)

    class Hub(_Hub):
        content = (tmp_path / "hub.parquet").read_bytes()
        asked: list[tuple[str, str, str | None]] = []  # noqa: RUF012 - of this test alone

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        own = {"HF_ENDPOINT": url, "HF_TOKEN": "secret", "HF_HOME": str(tmp_path / "home"), "no_proxy": "127.0.0.1"}

        def call(dataset: str) -> subprocess.CompletedProcess[str]:
            words = ["data", "swebench", f"input={dataset}", f"out={tmp_path / 'out'}", "validation=0"]
            program = "import sys; from rollout.cli import main; sys.exit(main(sys.argv[1:]))"
            command = [sys.executable, "-c", program, *words]
            return subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=100)

        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Hub, call
        server.shutdown()
        thread.join(30)


def test_rows_of_the_hub_are_fetched_once(
    hub: tuple[type[_Hub], Callable[..., subprocess.CompletedProcess[str]]], tmp_path: Path
) -> None:
    for _ in range(2):
        done = hub[1]("o/d")
        assert done.returncode == 0, done.stderr
    assert parquet.read_table(tmp_path / "out/train.parquet").num_rows == 1
    assert [path for command, path, _ in hub[0].asked if command == "GET" and "/resolve/" in path] == [
        "/datasets/o/d/resolve/refs%2Fconvert%2Fparquet/default/train/0000.parquet"
    ]
    assert {token for _, path, token in hub[0].asked if "/o/d/" in path} == {"Bearer secret"}


@pytest.mark.parametrize(("dataset", "problem"), [("o/absent", "404"), ("o/none", "the hub has no parquet files of")])
def test_what_the_hub_does_not_have_is_named(
    hub: tuple[type[_Hub], Callable[..., subprocess.CompletedProcess[str]]], dataset: str, problem: str
) -> None:
    done = hub[1](dataset)
    assert done.returncode == 1
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
