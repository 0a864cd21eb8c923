"""Files out of the work folder: what they are, how many bytes, and nothing that is not the program's own."""

from __future__ import annotations

from executor_service import ExecutorClient, FileStatus, InputFile, Limits, OutputFile


async def test_returned_files_and_what_became_of_the_others(executor: ExecutorClient) -> None:
    code = """
import os
os.makedirs("out/deep")
open("out/deep/a.bin", "wb").write(bytes(range(256)))
open("empty", "w").close()
open("private", "w").write("mine"); os.chmod("private", 0)
os.mkfifo("pipe")
"""
    paths = ["out/deep/a.bin", "empty", "private", "nothing", "out", "pipe", "empty/below", "main.py"]
    result = await executor.execute(code, return_paths=paths)
    assert result.files[0] == OutputFile("out/deep/a.bin", FileStatus.RETURNED, bytes(range(256)), 256)
    assert result.files[1] == OutputFile("empty", FileStatus.RETURNED, b"", 0)
    assert result.files[2] == OutputFile("private", FileStatus.RETURNED, b"mine", 4)
    statuses = [FileStatus.MISSING, FileStatus.NOT_REGULAR, FileStatus.NOT_REGULAR, FileStatus.MISSING]
    assert [file.status for file in result.files[3:7]] == statuses
    assert result.files[7].content == code.encode()
    assert [file.path for file in result.files] == paths


async def test_returned_bytes_are_bounded(executor: ExecutorClient) -> None:
    code = "open('a', 'wb').write(bytes(600)); open('b', 'wb').write(bytes(600)); open('c', 'wb').write(bytes(400))"
    result = await executor.execute(code, return_paths=["a", "b", "c"], limits=Limits(return_bytes=1000))
    statuses = [(file.status, file.size_bytes, len(file.content)) for file in result.files]
    assert statuses == [
        (FileStatus.RETURNED, 600, 600),
        (FileStatus.TOO_LARGE, 600, 0),
        (FileStatus.RETURNED, 400, 400),
    ]


async def test_files_are_returned_after_a_limit_too(executor: ExecutorClient) -> None:
    code = "open('a', 'w').write('kept')\nwhile True: pass"
    result = await executor.execute(code, return_paths=["a"], limits=Limits(cpu_time_s=0.3))
    assert result.files[0].content == b"kept"


async def test_names_need_not_be_ascii(executor: ExecutorClient) -> None:
    code = "print(open('dir é/文.txt').read()); open('выход', 'w').write('ok')"
    result = await executor.execute(code, files=[InputFile("dir é/文.txt", b"in")], return_paths=["выход"])
    assert (result.stdout.data, result.files[0].content) == (b"in\n", b"ok")
