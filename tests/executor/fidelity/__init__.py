"""Programs whose behaviour under `python main.py` a sandbox could change, as tables. See `test_fidelity`."""
