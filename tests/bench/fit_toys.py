"""Contestants of known memory; named "fit_toys:Class" so that workers find them.

With one head of 4 numbers in fp32, a token has 48 bytes of inputs and 16 of output; `Line` and
`Square` add a buffer beside the output.
"""

import os
import time
from dataclasses import dataclass

import torch

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant, Capabilities

INPUTS_AND_OUTPUT = 64
LIMIT = 1000
"""The longest sequence that `Slow`, `Hungry` and `Fragile` live through."""


@dataclass(frozen=True)
class ToyOptions:
    bytes_each: int = 1000


class Toy(AttentionVariant):
    """Returns a copy of the values; `act` does what the toy is for and keeps what it returns."""

    Options = ToyOptions
    capabilities = Capabilities(noncausal_self=True)

    def forward(self, q, k, v, mask, dropout_p=0.0):
        kept = self.act(q.shape[0], q.shape[-2])
        out = v.clone()
        del kept
        return out

    def buffer(self, count):
        return torch.empty(count * self.options.bytes_each, dtype=torch.uint8)


@ea.register_variant("toy_fit_line")
class Line(Toy):
    def act(self, batch, length):
        return self.buffer(batch * length)


@ea.register_variant("toy_fit_square")
class Square(Toy):
    def act(self, batch, length):
        return self.buffer(batch * length**2)


@ea.register_variant("toy_fit_slow")
class Slow(Toy):
    def act(self, batch, length):
        if length > LIMIT:
            time.sleep(60)


@ea.register_variant("toy_fit_hungry")
class Hungry(Toy):
    def act(self, batch, length):
        if length > LIMIT:
            torch.ones(2**40)


@ea.register_variant("toy_fit_fragile")
class Fragile(Toy):
    def act(self, batch, length):
        if length > LIMIT:
            os._exit(3)


@ea.register_variant("toy_fit_broken")
class Broken(Toy):
    def act(self, batch, length):
        raise RuntimeError("a deliberate fault")
