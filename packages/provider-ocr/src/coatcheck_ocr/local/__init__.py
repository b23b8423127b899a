"""OCR on this machine: an engine in detached job processes, a spool folder, and the handler for both."""
