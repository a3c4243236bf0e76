"""Peak memory: against the tensors alive at the peak, counted by hand, and in awkward cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from memory_by_hand import by_hand
from shipped import SHIPPED

from efficient_attn.attention import variant_class
from efficient_attn.attention.variants import linformer
from efficient_attn.bench import memory
from efficient_attn.bench.cell import PRELOAD
from efficient_attn.bench.passes import build
from efficient_attn.bench.worker import Limits, Worker, worker_context
from efficient_attn.bench.workload import Workload

TOLERANCE = 0.02
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in SHIPPED},
    "full, naive": ("full", {"implementation": "naive"}),
}
OTHER_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("linformer", {"k": 64}),
    ("local_window", {"window": (32, 16)}),
    ("performer", {"num_features": 64}),
    ("shifted_window", {"window": 32, "shift": 16}),
]


@pytest.fixture(autouse=True)
def kernels_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls too are taken by the kernels whose memory is known by hand."""
    monkeypatch.setattr(linformer, "SMALL", 0)
    monkeypatch.setattr(linformer, "FEW_ROWS", 0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("length", [1024, 1500])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
@pytest.mark.parametrize("pattern", ["noncausal_self", "causal_self"])
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_peak_is_that_of_the_tensors_alive(
    contestant: str, pattern: Any, pass_: Any, dtype: Any, length: int
) -> None:
    variant, options = CONTESTANTS[contestant]
    workload = Workload(heads=2, length=length, dtype=dtype, pass_=pass_, pattern=pattern)
    require_truth(variant, options, workload)


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
@pytest.mark.parametrize("pattern", ["noncausal_self", "causal_self"])
@pytest.mark.parametrize(("variant", "options"), OTHER_OPTIONS)
def test_so_it_is_with_other_options_and_sizes(
    variant: str, options: dict[str, Any], pattern: Any, pass_: Any
) -> None:
    workload = Workload(batch=3, heads=1, head_dim=32, length=1500, pass_=pass_, pattern=pattern)
    require_truth(variant, options, workload)


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_every_thread_of_the_fused_kernel_has_its_workspace(pass_: Any) -> None:
    torch.set_num_threads(3)
    require_truth("full", {}, Workload(heads=2, length=1024, dtype="bfloat16", pass_=pass_))


def require_truth(variant: str, options: dict[str, Any], workload: Workload) -> None:
    if not getattr(variant_class(variant).capabilities, workload.pattern):
        pytest.skip(f"{variant} is never {workload.pattern}")
    call = build(variant, options, workload)
    if call.backward:
        call()  # makes the gradient of the output, an input of the measured call
        call.reset()
    terms = by_hand(call, workload)
    measured = memory.peak_tensor_bytes(call, "cpu").tensor_bytes
    listed = "\n".join(f"{size:12,}  {name}" for name, size in terms.items())
    assert measured == pytest.approx(sum(terms.values()), rel=TOLERANCE), f"by hand:\n{listed}"


# --- awkward cases -----------------------------------------------------------------------------

MIB = 2**20


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8)


def peak_of(call: Callable[[], object]) -> float:
    return memory.peak_tensor_bytes(call, "cpu").tensor_bytes / MIB


def test_a_buffer_inside_the_call_counts_while_it_lives() -> None:
    def call() -> None:
        mebibytes(8)
        kept = mebibytes(2)
        mebibytes(3)
        del kept

    assert peak_of(call) == 8


def test_what_lived_before_makes_no_room_when_it_is_freed() -> None:
    """Its size is known to the profiler only when another profiled call made it."""
    for profiled in (False, True):
        before: list[torch.Tensor] = []
        if profiled:
            memory.kept_tensor_bytes(lambda before=before: before.append(mebibytes(16)), "cpu")
        else:
            before.append(mebibytes(16))

        def call(before: list[torch.Tensor] = before) -> None:
            before.clear()
            mebibytes(4)

        assert peak_of(call) == 4


def test_a_remembered_address_does_not_lend_its_size() -> None:
    """Freed unseen, an address stays known to the profiler with the size of its old block."""
    big, small = 64, 1
    events = [(1, small * MIB), (7, -big * MIB), (2, small * MIB), (1, -small * MIB)]
    assert memory._peak_and_end(events) == (2 * small * MIB, small * MIB)


def test_a_tensor_made_in_the_call_and_freed_after_it_is_kept() -> None:
    made, kept = memory.kept_tensor_bytes(lambda: (mebibytes(8), mebibytes(2))[1], "cpu")
    assert (made.nbytes, kept) == (2 * MIB, 2 * MIB)


def test_events_of_one_moment_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed and allocated at one address in the same nanosecond: the block is alive afterwards."""
    kind = memory._EventType.Allocation

    def event(time: int, address: int, size: int) -> SimpleNamespace:
        fields = SimpleNamespace(ptr=address, alloc_size=size, device=torch.device("cpu"))
        return SimpleNamespace(start_time_ns=time, tag=kind, extra_fields=fields, children=[])

    inner = [event(5, 1, -10), event(5, 1, 20), event(6, 2, 30)]
    outer = SimpleNamespace(start_time_ns=4, tag=memory._EventType.TorchOp, children=inner)
    result = SimpleNamespace(experimental_event_tree=lambda: [event(1, 1, 10), outer])
    profiler: Any = SimpleNamespace(profiler=SimpleNamespace(kineto_results=result))
    assert memory._peak_and_end(memory._allocations(profiler)) == (50, 50)


class Summand(torch.autograd.Function):
    """Its backward pass needs a buffer of 8 MiB."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mebibytes(8)
        return gradient.clone()


def test_the_backward_pass_counts() -> None:
    x = torch.ones(MIB // 4, requires_grad=True)
    peak = peak_of(lambda: Summand.apply(x).sum().backward())
    assert peak == pytest.approx(8, abs=0.01)


def test_a_worker_measures_what_this_process_measures() -> None:
    """Its profiler was started once in the server that it is forked from."""
    workload = Workload(heads=2, length=1024)
    call = build("performer", {}, workload)
    worker = Worker(worker_context(PRELOAD), Held, (workload,), Limits(None, 60.0))
    try:
        assert worker.ask("peak") == memory.peak_tensor_bytes(call, "cpu").tensor_bytes
    finally:
        worker.close()


class Held:
    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        self.call = build("performer", {}, workload)

    def peak(self) -> int:
        return memory.peak_tensor_bytes(self.call, "cpu").tensor_bytes


def test_on_cuda_the_allocator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is emptied before peaks start anew; the device is done before they are read."""
    asked: list[str] = []
    answers = {
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 100,
        "max_memory_allocated": 350,
        "max_memory_reserved": 1000,
    }
    for name, answer in answers.items():

        def stand_in(*device: str, name: str = name, answer: int | None = answer) -> int | None:
            asked.append(name)
            return answer

        monkeypatch.setattr(torch.cuda, name, stand_in)
    peak = memory.peak_tensor_bytes(lambda: asked.append("call"), "cuda:0")
    assert peak == memory.PeakMemory(250, "cuda_allocator", 1000)
    before, after = asked[: asked.index("call")], asked[asked.index("call") + 1 :]
    assert before[1:] == ["empty_cache", "reset_peak_memory_stats", "memory_allocated"]
    assert after[0] == "synchronize"
