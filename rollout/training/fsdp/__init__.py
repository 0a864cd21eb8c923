"""A learner whose model is split over several processes with FSDP2."""
