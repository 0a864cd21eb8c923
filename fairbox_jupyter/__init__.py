"""A kernel of Jupyter whose cells run in a session of an executor: `python -m fairbox_jupyter install` lists it.

Needs ipykernel (extra `jupyter`); nothing of fairbox imports it.
"""

from fairbox_jupyter.kernel import FairboxKernel

__all__ = ["FairboxKernel"]
