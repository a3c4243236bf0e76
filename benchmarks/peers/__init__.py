"""Implementations that others wrote, beside ours."""
