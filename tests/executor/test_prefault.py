"""Pages are copied for a worker before it writes to them, and nothing else about them changes."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Callable

import pytest

from executor_service.guest.warm import prefault

PAGES = 256
FEW = 32
"""Page faults that have nothing to do with what is looked at."""


@pytest.fixture
def memory() -> mmap.mmap:
    found = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Small pages: one write would copy a huge one whole, or take it apart.
    found.madvise(mmap.MADV_NOHUGEPAGE)
    found[:] = b"x" * len(found)
    return found


@pytest.fixture
def learned(memory: mmap.mmap) -> int:
    count = prefault.learn(lambda: write(memory))
    if not count:
        pytest.skip("this kernel can't copy pages ahead: process_madvise(PIDFD_SELF, MADV_POPULATE_WRITE), pagemap")
    return count


def write(memory: mmap.mmap) -> None:
    for i in range(0, len(memory), mmap.PAGESIZE):
        memory[i] = ord("y")


def in_a_child(work: Callable[[], int]) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100)
    os.close(reader)
    os.waitpid(child, 0)
    return int(answer)


def faults_of(memory: mmap.mmap, before: Callable[[], object]) -> int:
    """Page faults of a child that writes to all of it: the fewest of three, as the kernel adds its own at times."""

    def work() -> int:
        before()
        first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        write(memory)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first

    return min(in_a_child(work) for _ in range(3))


def faults_when_learned(memory: mmap.mmap, *programs: Callable[[], object]) -> int:
    """Page faults behind a copy of what the programs write to: the fewest of three, as the kernel moves pages at times
    while they are looked at."""
    found = []
    for _ in range(3):
        assert prefault.learn(*programs) >= PAGES
        found.append(faults_of(memory, prefault.copy))
    return min(found)


def test_what_is_learned_is_copied_at_once(memory: mmap.mmap, learned: int) -> None:
    assert learned >= PAGES
    assert faults_of(memory, lambda: None) >= PAGES
    assert faults_when_learned(memory, lambda: write(memory)) <= FEW


def test_learning_leaves_nothing_and_copying_changes_nothing(memory: mmap.mmap, learned: int) -> None:
    assert learned
    assert set(memory[:]) == {ord("x")}
    assert in_a_child(lambda: prefault.copy() and int(set(memory[:]) == {ord("x")})) == 1


def test_a_page_that_nobody_writes_to_is_left_alone(memory: mmap.mmap) -> None:
    count = prefault.learn(lambda: memory[0])
    assert count < PAGES


def test_of_several_programs_it_is_what_all_of_them_write_to(memory: mmap.mmap, learned: int) -> None:
    assert learned

    def half() -> None:
        for i in range(0, len(memory) // 2, mmap.PAGESIZE):
            memory[i] = ord("z")

    assert PAGES // 2 <= prefault.learn(half, lambda: write(memory)) < PAGES
    assert PAGES // 2 <= faults_of(memory, prefault.copy) < PAGES


def test_memory_that_only_the_child_has_is_not_learned(memory: mmap.mmap, learned: int) -> None:
    assert learned
    kept = []

    def program() -> None:
        kept.append(mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))  # below all that there is
        kept[0].madvise(mmap.MADV_NOHUGEPAGE)
        kept[0][0] = kept[0][len(kept[0]) // 2] = 1
        write(memory)

    assert faults_when_learned(memory, program, program) <= FEW
