"""Durable, throttled, recoverable tasks for vendor APIs that answer with a ticket."""
