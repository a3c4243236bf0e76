"""The FLOP counter against hand computations: fused kernels, causal ones, fast paths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from efficient_attn.bench.flop_counter import count_flops

B, H, N, M, D = 2, 3, 5, 7, 4
aten = torch.ops.aten


def tensors(queries=N, keys=M, *, heads=H, dtype=torch.float32, grad=False, device="cpu"):
    return [
        torch.ones(B, h, n, D, dtype=dtype, device=device, requires_grad=grad)
        for h, n in ((H, queries), (heads, keys), (heads, keys))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_fused_forward_has_two_products_and_backward_five(dtype, masked):
    mask = torch.ones(N, M, dtype=torch.bool) if masked else None
    product = 2 * B * H * N * M * D

    def forward():
        return F.scaled_dot_product_attention(*tensors(dtype=dtype, grad=True), attn_mask=mask)

    assert count_flops(forward) == 2 * product
    assert count_flops(lambda: forward().sum().backward()) == 7 * product


@pytest.mark.parametrize(
    ("queries", "keys", "pairs"), [(4, 4, 1 + 2 + 3 + 4), (2, 4, 1 + 2), (4, 2, 1 + 2 + 2 + 2)]
)
def test_causal_kernel_counts_what_it_sees(queries, keys, pairs):
    def forward():
        inputs = tensors(queries, keys, grad=True)
        return F.scaled_dot_product_attention(*inputs, is_causal=True)

    assert count_flops(forward) == 2 * 2 * B * H * pairs * D
    assert count_flops(lambda: forward().sum().backward()) == 7 * 2 * B * H * pairs * D


def test_shared_heads_of_keys_count_for_every_query_head():
    def forward():
        return F.scaled_dot_product_attention(*tensors(heads=1), enable_gqa=True)

    assert count_flops(forward) == 4 * B * H * N * M * D


def test_attention_written_out_has_four_products_in_its_backward():
    def call():
        q, k, v = tensors(grad=True)
        ((q @ k.transpose(-1, -2)).softmax(-1) @ v).sum().backward()

    assert count_flops(call) == 6 * 2 * B * H * N * M * D


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_kernels_of_a_gpu_on_tensors_without_data(name, causal):
    q, k, v = tensors(N, N, device="meta")
    operator = getattr(aten, f"_scaled_dot_product_{name}_attention")
    between = {"flash": [0.0], "efficient": [None, True, 0.0], "cudnn": [None, True, 0.0]}[name]
    pairs = N * (N + 1) // 2 if causal else N * N
    out, logsumexp, *_ = operator(q, k, v, *between, causal)
    assert count_flops(lambda: operator(q, k, v, *between, causal)) == 4 * B * H * pairs * D

    seed = torch.empty((), dtype=torch.long, device="meta")
    backward = getattr(aten, f"_scaled_dot_product_{name}_attention_backward")
    rest = {
        "flash": [out, logsumexp, None, None, N, N, 0.0, causal, seed, seed],
        "efficient": [None, out, logsumexp, seed, seed, 0.0, [True, True, True, False], causal],
        "cudnn": [out, logsumexp, seed, seed, None, None, None, N, N, 0.0, causal],
    }[name]
    counted = count_flops(lambda: backward(torch.ones_like(out), q, k, v, *rest))
    assert counted == 10 * B * H * pairs * D


@pytest.mark.parametrize("slow", [False, True])
def test_multihead_attention_of_torch_on_both_its_paths(slow):
    heads = 2  # the fast path wants an even number
    E = heads * D
    module = torch.nn.MultiheadAttention(E, heads, batch_first=True).train(slow)
    x = torch.ones(B, N, E)

    def call():
        with torch.no_grad():
            module(x, x, x, need_weights=False)

    projections = 4 * 2 * B * N * E * E
    assert count_flops(call) == projections + 4 * B * heads * N * N * D
    assert torch.backends.mha.get_fastpath_enabled()


def test_products_with_vectors():
    matrix, vector = torch.ones(N, M), torch.ones(M)
    assert count_flops(lambda: matrix @ vector) == 2 * N * M
    assert count_flops(lambda: torch.addmv(torch.ones(N), matrix, vector)) == 2 * N * M
    assert count_flops(lambda: vector @ vector) == 2 * M


@pytest.mark.parametrize("groups", [1, 4])
def test_backward_of_a_grouped_convolution_costs_twice_its_forward(groups):
    convolution = torch.nn.Conv1d(4, 4, 3, groups=groups)
    x = torch.ones(B, 4, 10, requires_grad=True)
    forward = 2 * B * 8 * 4 * (4 // groups) * 3
    assert count_flops(lambda: convolution(x)) == forward
    assert count_flops(lambda: convolution(x).sum().backward()) == 3 * forward
