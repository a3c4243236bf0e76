"""Figures from records, drawn without a window or any global plotting state."""
