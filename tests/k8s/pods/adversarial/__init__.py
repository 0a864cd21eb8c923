"""The adversarial suite of the executor, against one that runs in its pod."""
