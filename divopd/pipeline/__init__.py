"""Who decides when things happen: `virtual` is the deterministic discrete-event clock in one process."""
