"""Tests of the attention package, written once for all variants and selected by capability."""
