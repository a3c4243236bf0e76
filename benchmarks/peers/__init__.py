"""Implementations that others wrote, beside ours.

One file per package adapts it to `AttentionVariant`, under the name ``peer:<package>``; a sweep
names an adapter by its class, as ``efficient_attn.peers.local_attention:LocalAttention``. The
packages come with the extra ``peers`` and are imported when an adapter is built, so that one that
is missing is an answer (`UnsupportedAttention`) and not a crash.
"""
