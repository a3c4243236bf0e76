"""Models of other libraries, rebuilt here around any attention variant."""
