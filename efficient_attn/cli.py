"""The `efficient-attn` command. Nothing heavy is imported before a word is known to need it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from efficient_attn import __version__

OK, WRONG_REQUEST = 0, 2
PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 only when all that was asked was done."""
    parser = _parser()
    # A sweep's words are Hydra's, which argparse would take apart.
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["sweep"] and not {"-h", "--help"} & set(words):
        return _command("sweep")(words[1:])
    chosen = parser.parse_args(words)
    if chosen.command is None:
        parser.print_help()
        return WRONG_REQUEST
    try:
        return _command(chosen.command)(chosen)
    except (ValueError, OSError, LookupError) as error:
        print(f"efficient-attn {chosen.command}: {error}", file=sys.stderr)
        return WRONG_REQUEST


def _command(word: str) -> Callable[..., int]:
    module, function = _COMMANDS[word]
    return getattr(import_module(f"efficient_attn.commands.{module}"), function)


_COMMANDS = {
    "list": ("variants", "list_command"),
    "describe": ("variants", "describe_command"),
    "check": ("check", "main"),
    "show": ("show", "main"),
    "sweep": ("sweep", "main"),
    "plot": ("plot", "main"),
    "pick": ("pick", "main"),
    "doctor": ("doctor", "main"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="efficient-attn",
        description="Measure, compare and pick attention mechanisms.",
        epilog="example: efficient-attn sweep +experiment=demo",
    )
    parser.add_argument("--version", action="version", version=__version__)
    words = parser.add_subparsers(dest="command", metavar="COMMAND")

    def word(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return words.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    listing = word("list", "List the attention variants.", "efficient-attn list --causal")
    for flag, summary in (
        ("causal", "only those that can be causal"),
        ("cross", "only those that can attend across sequences of different lengths"),
        ("weights", "only those that give attention weights"),
        ("decode", "only those that decode token by token"),
        ("exact", "only those that equal softmax attention under their pattern"),
    ):
        listing.add_argument(f"--{flag}", action="store_true", help=summary)
    listing.add_argument(
        "--matrix", action="store_true", help="print variants × capabilities as a Markdown table"
    )
    _json_flag(listing)

    describe = word(
        "describe",
        "Tell what a variant is, what it costs, what it can do and its options.",
        "efficient-attn describe performer",
    )
    describe.add_argument("name", help="a name that `efficient-attn list` prints")
    _json_flag(describe)

    check = word(
        "check",
        "Observe what a variant really does, beside what it declares; 1 where they differ.",
        "efficient-attn check my_module:MyAttention --option window=8",
    )
    check.add_argument("variant", help="a registered name, or module:Class for one of your own")
    _options_flag(check)
    _json_flag(check)

    show = word(
        "show",
        "Draw who sees whom, and the weights of each head.",
        "efficient-attn show local_window --option window=4 --pattern causal_self",
    )
    show.add_argument("variant", help="a registered name, or module:Class for one of your own")
    show.add_argument("--length", type=int, default=32, help="tokens (default: 32)")
    show.add_argument("--pattern", choices=PATTERNS, default="noncausal_self")
    show.add_argument("--heads", type=int, default=4, help="default: 4")
    show.add_argument("--out", help="path without ending (default: VARIANT-PATTERN-LENGTH)")
    _format_flag(show)
    _options_flag(show)

    sweep = word(
        "sweep",
        "Measure contestants over lengths, passes, tasks and seeds; resumes where it ended.",
        "efficient-attn sweep +experiment=demo\n"
        "  efficient-attn sweep attention=[full,performer] workload.length=1024,4096 \\\n"
        "      workload.pattern=causal_self attention.performer.num_features=128 results=mine\n"
        "  efficient-attn sweep measure=accuracy task=mqar measure.seed=0,1,2 results=mine\n\n"
        "Overrides are Hydra's: group=choice, key=value, and commas sweep. Groups are\n"
        "attention, workload, task, model, measure, experiment (+experiment=NAME).",
    )
    sweep.add_argument("overrides", nargs="*", help="Hydra overrides")
    sweep.add_argument("--dry-run", action="store_true", help="list what would be measured")

    plot = word(
        "plot",
        "Draw complexity curves and the accuracy-cost front of a results folder.",
        "efficient-attn plot results/demo",
    )
    plot.add_argument("results", help="folder that a sweep wrote")
    plot.add_argument("--out", help="folder for the figures (default: RESULTS/figures)")
    _format_flag(plot)

    pick = word(
        "pick",
        "Rank the variants for a workload, with the evidence.",
        "efficient-attn pick --length 8192 --pattern causal_self --from results/demo",
    )
    pick.add_argument("--length", type=int, required=True, help="queries N")
    pick.add_argument("--pattern", choices=PATTERNS, default="noncausal_self")
    pick.add_argument(
        "--from",
        dest="results",
        default="results/demo",
        metavar="RESULTS",
        help="folder of records (default: results/demo)",
    )
    for flag, default in (("batch", 1), ("heads", 8), ("head-dim", 64)):
        pick.add_argument(f"--{flag}", type=int, default=default, help=f"default: {default}")
    pick.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        default="float32",
        help="default: float32",
    )
    pick.add_argument("--device", default="cpu", help="default: cpu")
    pick.add_argument(
        "--pass",
        dest="pass_",
        choices=("forward", "forward_backward"),
        default="forward",
        help="inference or a training step (default: forward)",
    )
    pick.add_argument("--memory-gb", type=float, help="reject what needs more, in GiB")
    pick.add_argument("--milliseconds", type=float, help="reject what takes longer per pass")
    pick.add_argument("--need-weights", action="store_true", help="attention weights are needed")
    _json_flag(pick)

    doctor = word("doctor", "Print the environment and check it.", "efficient-attn doctor")
    _json_flag(doctor)
    return parser


def _options_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the variant; may be repeated",
    )


def _format_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        action="append",
        choices=("png", "svg", "pdf"),
        help="may be repeated (default: png and svg)",
    )


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


if __name__ == "__main__":
    sys.exit(main())
