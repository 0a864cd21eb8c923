"""Cost of grading through the reward functions.

FAIRBOX_PRIME_CODE names another judge, which `cases` stands beside; `published` needs FAIRBOX_DATA.
"""

from benchmarks.grading.cases import cases_rows
from benchmarks.grading.corpus import corpus_rows
from benchmarks.grading.published import published_rows

PARTS = {"cases": cases_rows, "published": published_rows, "corpus": corpus_rows}
