"""SmolLM2 learns to add on a CPU: `make train-demo`."""
