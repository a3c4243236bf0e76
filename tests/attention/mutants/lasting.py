"""What outlives a call: checkpoints, draws, gradients, traced programs. Kinds 10 to 12."""

from __future__ import annotations

from attention.mutants.base import (
    FULL,
    GRID,
    LINFORMER,
    LOCAL,
    MULTIHEAD,
    PERFORMER,
    SHIFTED,
    Mutation,
)

SHAPES = [
    Mutation(
        10,
        "rows and columns of the grid swapped",
        "shifted_window",
        SHIFTED,
        "return grid, (rows, columns), self.options.shifts",
        "return grid[::-1], (rows, columns), self.options.shifts",
    ),
    Mutation(
        10,
        "axes of the bias swapped",
        "shifted_window",
        GRID,
        "torch.cartesian_prod(rows, columns)",
        "torch.cartesian_prod(columns, rows)",
    ),
    Mutation(
        10,
        "a mask of the input's size in the checkpoint",
        "local_window",
        LOCAL,
        "        return near | ",
        '        self.register_buffer("near", near)\n        return near | ',
    ),
    Mutation(
        10,
        "a bias table of another window is loaded in part",
        "shifted_window",
        SHIFTED,
        "    def forward(\n",
        "    def _load_from_state_dict(self, state, prefix, *rest):\n"
        '        table = state.get(prefix + "relative_bias")\n'
        "        if table is not None:\n"
        "            own = self.relative_bias.detach().clone()\n"
        "            own[: len(table)] = table[: len(own)]\n"
        '            state[prefix + "relative_bias"] = own\n'
        "        super()._load_from_state_dict(state, prefix, *rest)\n\n"
        "    def forward(\n",
    ),
]

RANDOMNESS = [
    Mutation(
        11,
        "features are redrawn in eval",
        "performer",
        PERFORMER,
        "if interval is None or not self.training:",
        "if interval is None:",
    ),
    Mutation(
        11,
        "features are not in the state dict",
        "performer",
        PERFORMER,
        "features.to(device=device, dtype=dtype or torch.float32))",
        "features.to(device=device, dtype=dtype or torch.float32), persistent=False)",
    ),
    Mutation(
        11,
        "the count of calls is not in the state dict",
        "performer",
        PERFORMER,
        "torch.zeros((), dtype=torch.long, device=device))",
        "torch.zeros((), dtype=torch.long, device=device), persistent=False)",
    ),
    Mutation(
        11,
        "features come from the global generator",
        "performer",
        PERFORMER,
        "generator = torch.Generator().manual_seed(seed)",
        "generator = torch.default_generator",
    ),
    Mutation(
        11,
        "features that should vary are frozen",
        "performer",
        PERFORMER,
        "self.calls.add_(1)",
        "self.calls.add_(0)",
    ),
    Mutation(
        11,
        "E and F come from the global generator",
        "linformer",
        LINFORMER,
        "generator = torch.Generator().manual_seed(self.options.seed)",
        "generator = torch.default_generator",
    ),
    Mutation(
        11,
        "one short batch narrows the window for ever",
        "local_window",
        LOCAL,
        "return min(left, N - 1), min(right, N - 1), min(G, N)",
        'left = self.__dict__["_left"] = min(left, N - 1, self.__dict__.get("_left", left))\n'
        "        return min(left, N - 1), min(right, N - 1), min(G, N)",
    ),
]

PARAMETERS = [
    Mutation(
        12,
        "F is never used",
        "linformer",
        LINFORMER,
        "values = _project(self.F, ",
        "values = _project(self.E, ",
    ),
    Mutation(
        12,
        "the bias table gets no gradient",
        "shifted_window",
        SHIFTED,
        "rearrange(self.relative_bias[index]",
        "rearrange(self.relative_bias.detach()[index]",
    ),
    Mutation(
        12,
        "biases of cross-attention get no gradient",
        None,
        MULTIHEAD,
        "return self.in_proj_bias.split(self._widths)",
        "return self.in_proj_bias.detach().split(self._widths)",
    ),
    Mutation(
        12,
        "a traced program has the number of chunks baked in",
        "full",
        FULL,
        "starts = [0] if torch.compiler.is_compiling() else range(",
        "starts = range(",
    ),
    Mutation(
        12,
        "a traced program has the number of chunks baked in",
        "performer",
        PERFORMER,
        "traced = torch.compiler.is_compiling()\n",
        "traced = False\n",
    ),
    Mutation(
        12,
        "a traced program has the number of blocks baked in",
        "local_window",
        LOCAL,
        "traced = torch.compiler.is_compiling()  #",
        "traced = False  #",
    ),
    Mutation(
        12,
        "a traced program has whole windows baked in",
        "shifted_window",
        SHIFTED,
        "pads = torch.compiler.is_compiling() or ",
        "pads = ",
    ),
]

LASTING = [*SHAPES, *RANDOMNESS, *PARAMETERS]
