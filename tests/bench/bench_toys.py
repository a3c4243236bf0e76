"""Contestants that misbehave in a known way; named "bench_toys:Class" so that workers find them."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

import torch

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant, Capabilities


@dataclass(frozen=True)
class ToyOptions:
    milliseconds: float = 20.0
    megabytes: int = 16


class Toy(AttentionVariant):
    """Returns the values; `act` does what the toy is for."""

    Options = ToyOptions
    capabilities = Capabilities(causal_self=True)

    def forward(self, q, k, v, mask, dropout_p=0.0):
        self.act()
        return v.clone()


@ea.register_variant("toy_sleeper")
class Sleeper(Toy):
    def act(self):
        time.sleep(self.options.milliseconds / 1e3)


@ea.register_variant("toy_allocator")
class Allocator(Toy):
    def act(self):
        torch.ones(self.options.megabytes, 2**18).sum()


@ea.register_variant("toy_segfault")
class Segfault(Toy):
    def act(self):
        ctypes.string_at(0)


@ea.register_variant("toy_exit")
class Exit(Toy):
    def act(self):
        os._exit(3)


@ea.register_variant("toy_killed")
class Killed(Toy):
    def act(self):
        os.kill(os.getpid(), signal.SIGKILL)


@ea.register_variant("toy_endless")
class Endless(Toy):
    def act(self):
        while True:
            time.sleep(0.01)


@ea.register_variant("toy_hog")
class Hog(Toy):
    def act(self):
        torch.ones(2**40)


@ea.register_variant("toy_faulty")
class Faulty(Toy):
    def act(self):
        raise RuntimeError("a deliberate fault")


@ea.register_variant("toy_late")
class Late(Toy):
    """Fails at its fifth call, in the middle of the race."""

    calls = 0

    def act(self):
        Late.calls += 1
        if Late.calls == 5:
            raise RuntimeError("too late")


@ea.register_variant("toy_chatty")
class Chatty(Toy):
    def act(self):
        sys.stdout.write("x" * 2**20)
        sys.stderr.write("y" * 2**20)
