"""The `efficient-attn` command. Nothing heavy is imported before a word is known to need it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from efficient_attn import __version__
from efficient_attn.commands.options import look_here
from efficient_attn.commands.sweep_words import EXAMPLE, add_words

OK, WRONG_REQUEST = 0, 2
PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 only when all that was asked was done."""
    look_here()
    parser = _parser()
    _complete(parser)
    # A sweep's words are Hydra's, which argparse would take apart.
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["sweep"] and not {"-h", "--help"} & set(words):
        if "--dry-run" not in words:  # workers' modules load while the sweep's own do
            import_module("efficient_attn.bench.cell").start_server()
        return _command("sweep")(words[1:])
    chosen = parser.parse_args(words)
    if chosen.command is None:
        parser.print_help()
        return WRONG_REQUEST
    try:
        return _command(chosen.command)(chosen)
    except (ValueError, OSError, LookupError, ImportError) as error:
        print(f"efficient-attn {chosen.command}: {error}", file=sys.stderr)
        return WRONG_REQUEST


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line may go on, and end; nothing otherwise."""
    if "_ARGCOMPLETE" in os.environ:
        with suppress(ImportError):
            import_module("argcomplete").autocomplete(parser)


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
    "report": ("report", "main"),
    "pick": ("pick", "main"),
    "compare": ("compare", "main"),
    "export": ("export", "main"),
    "merge": ("merge", "main"),
    "prepare": ("prepare", "main"),
    "fit": ("fit", "main"),
    "bench-model": ("bench_model", "main"),
    "adapt": ("adapt", "main"),
    "new-variant": ("new_variant", "main"),
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
    _language_flag(show)
    _options_flag(show)

    sweep = word(
        "sweep",
        "Measure contestants over lengths, passes, tasks and seeds; resumes where it ended.",
        EXAMPLE,
    )
    add_words(sweep)

    plot = word(
        "plot",
        "Draw complexity curves, crossovers, fronts, peak shares and accuracy of a results folder.",
        "efficient-attn plot results/demo",
    )
    plot.add_argument("results", help="folder that a sweep wrote")
    plot.add_argument("--out", help="folder for the figures (default: RESULTS/figures)")
    plot.add_argument(
        "--predict-to",
        type=int,
        metavar="N",
        help="show what the scaling fits predict beyond the longest length, up to N tokens",
    )
    _format_flag(plot)
    _language_flag(plot)

    report = word(
        "report",
        "Write one HTML page that needs no network: curves, tables, failures, and a picker.",
        "efficient-attn report results/demo --out report.html",
    )
    report.add_argument("results", help="folder that a sweep wrote")
    report.add_argument("--out", help="file (default: RESULTS/report.html)")

    pick = word(
        "pick",
        "Rank the variants for a workload, with the evidence.",
        "efficient-attn pick --length 8192 --pattern causal_self --from results/demo",
    )
    pick.add_argument("--length", type=int, help="queries N")
    pick.add_argument(
        "--lengths",
        metavar="FILE",
        help="instead: lengths that occur, one a line or LENGTH<TAB>COUNT, or JSON",
    )
    pick.add_argument("--pattern", choices=PATTERNS, default="noncausal_self")
    pick.add_argument(
        "--from",
        dest="results",
        metavar="RESULTS",
        help="folder of records (default: results/reference-cpu of the repository)",
    )
    for flag, default in (("batch", 1), ("heads", 8), ("head-dim", 64)):
        pick.add_argument(f"--{flag}", type=int, default=default, help=f"default: {default}")
    pick.add_argument("--key-length", type=int, help="keys M, for cross patterns (default: N)")
    pick.add_argument("--padding", type=float, default=0.0, help="share of masked keys, in [0, 1)")
    pick.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        default="float32",
        help="default: float32",
    )
    pick.add_argument("--device", default="cpu", help="default: cpu")
    pick.add_argument("--threads", type=int, help="of the CPU (default: as was measured)")
    pick.add_argument(
        "--scope",
        choices=("core", "module", "block"),
        help="what is timed: attention alone, with its projections, a layer (default: as measured)",
    )
    pick.add_argument(
        "--pass",
        dest="pass_",
        choices=("forward", "forward_backward", "train_step", "prefill", "decode"),
        default="forward",
        help="default: forward",
    )
    pick.add_argument("--memory-gb", type=float, help="reject what needs more, in GiB")
    pick.add_argument("--milliseconds", type=float, help="reject what takes longer per pass")
    pick.add_argument("--need-weights", action="store_true", help="attention weights are needed")
    pick.add_argument(
        "--exact-only", action="store_true", help="only what is softmax attention by definition"
    )
    pick.add_argument(
        "--needs",
        nargs="+",
        default=[],
        metavar="CAPABILITY=WEIGHT",
        help="of recall, locality, hierarchy, 2d and alignment, with weights: recall=2 locality=1",
    )
    pick.add_argument(
        "--tolerance",
        type=float,
        default=0.95,
        help="share of full's lead in what is needed that must be kept (default: 0.95)",
    )
    pick.add_argument(
        "--measure", action="store_true", help="time the first three and full here, now"
    )
    pick.add_argument(
        "--into",
        default="results/pick",
        metavar="FOLDER",
        help="for the records of --measure (default: results/pick)",
    )
    _json_flag(pick)

    compare = word(
        "compare",
        "Tell what became slower, larger, less accurate or failed between two results folders.",
        "efficient-attn compare results/before results/after\n"
        "  efficient-attn compare before after --relative-to full --threshold 0.05 --what time\n\n"
        "Worse or better means beyond the threshold with the whole 95 % interval; what is unclear\n"
        "is counted, not judged. Exits with 1 when something is worse, or is ok in A and fails\n"
        "in B.\n\n"
        "Plain times compare what was measured at different times: use them where the machine is\n"
        "quiet and the same. --relative-to NAME compares each contestant's ratio to NAME, paired\n"
        "round by round in its own folder: what slows the whole machine cancels, so use it on\n"
        "busy machines and in CI. It cannot see that NAME itself became slower.",
    )
    compare.add_argument("a", metavar="A", help="results folder from before")
    compare.add_argument("b", metavar="B", help="results folder from after")
    compare.add_argument(
        "--threshold", type=float, default=0.1, help="change to tolerate (default: 0.1, 10 %%)"
    )
    compare.add_argument(
        "--relative-to", metavar="NAME", help="compare times as ratios to this contestant"
    )
    compare.add_argument(
        "--what",
        default="time,memory,accuracy",
        metavar="QUANTITIES",
        help="of time, memory and accuracy, separated by commas (default: all)",
    )
    compare.add_argument("--all", action="store_true", help="list also what did not change")
    _json_flag(compare)

    export = word(
        "export",
        "Write the records of a results folder as one CSV or Parquet table.",
        "efficient-attn export results/demo --out demo.parquet\n  efficient-attn export --columns",
    )
    export.add_argument("results", nargs="?", help="folder that a sweep wrote")
    export.add_argument("--format", choices=("csv", "parquet"), help="default: as --out ends, csv")
    export.add_argument("--out", help="file, or - for CSV here (default: RESULTS/records.FORMAT)")
    export.add_argument(
        "--columns", action="store_true", help="print each column with its meaning and unit"
    )

    merge = word(
        "merge",
        "Bring the records of several results folders together; the newest of each stays.",
        "efficient-attn merge node1/results node2/results --into results/all",
    )
    merge.add_argument("results", nargs="+", help="folders that sweeps wrote")
    merge.add_argument("--into", required=True, metavar="FOLDER", help="created when missing")

    prepare = word(
        "prepare",
        "Write a data set that the system has installed as a file for the tasks.",
        "efficient-attn prepare verses --out data/verses.tsv",
    )
    prepare.add_argument(
        "data", choices=("verses",), help="verses: aligned English and Spanish Bible verses"
    )
    prepare.add_argument("--out", default="data/verses.tsv", help="file (default: data/verses.tsv)")
    prepare.add_argument(
        "--sword", default="/usr/share/sword", help="folder of texts (default: /usr/share/sword)"
    )
    prepare.add_argument("--force", action="store_true", help="write again what is there")

    fit = word(
        "fit",
        "Find the largest length or batch that fits a given memory, by measured runs.",
        "efficient-attn fit --memory-gb 8 --pass forward_backward\n"
        "  efficient-attn fit --memory-gb 2 --vary batch --length 4096 --variants full,linformer\n"
        "\n"
        "What counts is every tensor: inputs, parameters and the exact peak of what the pass adds\n"
        "to them. A size that was too slow, or too large for this machine, does not show what\n"
        "fits: the answer is then 'at least' the largest size that was measured. Exits with 1\n"
        "when a variant has no answer at all.",
    )
    fit.add_argument("--memory-gb", type=float, required=True, help="in GiB")
    fit.add_argument(
        "--variants",
        metavar="NAMES",
        help="separated by commas (default: the contestants of conf/attention and all others)",
    )
    fit.add_argument(
        "--vary", choices=("length", "batch"), default="length", help="default: length"
    )
    for flag, default in (("length", 1024), ("batch", 1), ("heads", 8), ("head-dim", 64)):
        fit.add_argument(f"--{flag}", type=int, default=default, help=f"default: {default}")
    fit.add_argument("--pattern", choices=PATTERNS, default="noncausal_self")
    fit.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        default="float32",
        help="default: float32",
    )
    fit.add_argument("--device", default="cpu", help="default: cpu")
    fit.add_argument(
        "--pass",
        dest="pass_",
        choices=("forward", "forward_backward", "train_step", "prefill", "decode"),
        default="forward",
        help="default: forward",
    )
    fit.add_argument(
        "--scope",
        choices=("core", "module", "block"),
        default="core",
        help="attention on split heads, with its projections, or a whole layer (default: core)",
    )
    fit.add_argument(
        "--timeout-s", type=float, default=60.0, help="longest run of one size (default: 60)"
    )
    fit.add_argument("--max", type=int, default=2**20, help="largest size tried (default: 2^20)")
    fit.add_argument(
        "--multiple-of",
        type=int,
        help="try such sizes only (default: lengths of whole windows, 64, and every batch)",
    )
    fit.add_argument(
        "--resolution",
        type=float,
        default=0.02,
        help="relative distance to the next size that does not fit (default: 0.02)",
    )
    _json_flag(fit)

    bench = word(
        "bench-model",
        "Time a whole model with its own attention, without any, and with each variant.",
        "efficient-attn bench-model --hf-config bert --lengths 512,1024,2048,4096\n"
        "  efficient-attn bench-model --model my_module:make --variants local_window \\\n"
        "      --option local_window.window=64 --pass forward_backward\n"
        "\n"
        "The share of time in attention is what no swap can save more than. What was measured\n"
        "already in the results folder is not measured again.",
    )
    source = bench.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--hf-config",
        metavar="CONFIG",
        help="folder of a checkpoint, config.json, or name of an architecture of transformers",
    )
    source.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="function of yours: called with length and batch, returns model and input",
    )
    bench.add_argument("--lengths", default="512,1024,2048", help="default: 512,1024,2048")
    bench.add_argument("--variants", help="separated by commas (default: all)")
    bench.add_argument(
        "--option",
        action="append",
        metavar="VARIANT.NAME=VALUE",
        help="option of a variant; may be repeated",
    )
    bench.add_argument("--batch", type=int, default=1, help="default: 1")
    bench.add_argument(
        "--pass",
        dest="pass_",
        choices=("forward", "forward_backward", "train_step"),
        default="forward",
        help="default: forward",
    )
    bench.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        default="float32",
        help="default: float32",
    )
    bench.add_argument("--device", default="cpu", help="default: cpu")
    bench.add_argument("--threads", type=int, help="of the CPU (default: all cores)")
    bench.add_argument(
        "--results", default="results/bench-model", help="folder (default: results/bench-model)"
    )
    _json_flag(bench)

    adapting = word(
        "adapt",
        "Give a trained language model another attention, and teach it on your text.",
        "efficient-attn adapt CHECKPOINT --variant local_window --option window=64 \\\n"
        "      --text my_texts/ --out adapted\n"
        "\n"
        "First the new attention learns to give what the old one gave, then the model learns its\n"
        "task for a while. The end of the text is kept apart: the metric before, after the swap\n"
        "and after adapting is of it. A run that was stopped goes on from OUT/adapt.pt.",
    )
    adapting.add_argument(
        "checkpoint",
        help="folder of a causal or masked language model of transformers, or one that "
        "save_pretrained wrote",
    )
    adapting.add_argument(
        "--variant", required=True, help="a name that `efficient-attn list` prints"
    )
    adapting.add_argument("--text", required=True, help="file, or folder of files")
    adapting.add_argument(
        "--out", required=True, metavar="FOLDER", help="for model/, adapt.json, adapt.pt"
    )
    for flag, default, what in (
        ("match-steps", 100, "of matching attention outputs"),
        ("steps", 200, "of the task"),
        ("length", 256, "tokens of a window"),
        ("batch", 8, "windows of a step"),
        ("seed", 0, "of windows and masks"),
    ):
        adapting.add_argument(
            f"--{flag}", type=int, default=default, help=f"{what} (default: {default})"
        )
    adapting.add_argument(
        "--rate", type=float, default=3e-4, help="learning rate of the task (default: 3e-4)"
    )
    _options_flag(adapting)
    _json_flag(adapting)

    new = word(
        "new-variant",
        "Write a variant of your own: one Python file, and one YAML that enters it in sweeps.",
        "efficient-attn new-variant my_attention\n  efficient-attn check my_attention:MyAttention",
    )
    new.add_argument("name", help="lower case, such as my_attention")
    new.add_argument("--folder", default=".", help="where to write (default: here)")

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


def _language_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--language", choices=("en", "zh"), default="en", help="of titles and axes (default: en)"
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
