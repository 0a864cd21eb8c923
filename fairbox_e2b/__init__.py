"""A service with which the SDKs of E2B run code in sandboxes of an executor: `python -m fairbox_e2b`.

It needs no package of E2B's; nothing of fairbox imports it.
"""
