"""Flags and words of each command. Imports nothing heavy."""

from __future__ import annotations

import argparse


def list_words(parser: argparse.ArgumentParser) -> None:
    for flag, summary in (
        ("causal", "only those that can be causal"),
        ("cross", "only those that can attend across sequences of different lengths"),
        ("weights", "only those that give attention weights"),
        ("decode", "only those that decode token by token"),
        ("exact", "only those that equal softmax attention under their pattern"),
    ):
        parser.add_argument(f"--{flag}", action="store_true", help=summary)
    parser.add_argument(
        "--matrix", action="store_true", help="print variants × capabilities as a Markdown table"
    )
    json_flag(parser)


def describe_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a name that `efficient-attn list` prints")
    json_flag(parser)


def check_words(parser: argparse.ArgumentParser) -> None:
    _variant_words(parser)
    json_flag(parser)


def show_words(parser: argparse.ArgumentParser) -> None:
    _variant_words(parser)
    parser.add_argument("--length", type=int, default=32, help="tokens (default: 32)")
    _pattern_flag(parser)
    _size_flags(parser, heads=4)
    parser.add_argument("--out", help="path without ending (default: VARIANT-PATTERN-LENGTH)")
    _format_flag(parser)
    _language_flag(parser)


def plot_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", help="folder that a sweep wrote")
    parser.add_argument("--out", help="folder for the figures (default: RESULTS/figures)")
    parser.add_argument(
        "--predict-to",
        type=int,
        metavar="N",
        help="show what the scaling fits predict beyond the longest length, up to N tokens",
    )
    _format_flag(parser)
    _language_flag(parser)


def report_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", help="folder that a sweep wrote")
    parser.add_argument("--out", help="file (default: RESULTS/report.html)")


def pick_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=int, help="queries N")
    parser.add_argument(
        "--lengths",
        metavar="FILE",
        help="instead: lengths that occur, one a line or LENGTH<TAB>COUNT, or JSON",
    )
    _pattern_flag(parser)
    parser.add_argument(
        "--from",
        dest="results",
        metavar="RESULTS",
        help="folder of records (default: results/reference-cpu of the repository)",
    )
    _size_flags(parser, batch=1, heads=8, head_dim=64)
    parser.add_argument("--key-length", type=int, help="keys M, for cross patterns (default: N)")
    parser.add_argument(
        "--padding", type=float, default=0.0, help="share of masked keys, in [0, 1)"
    )
    _place_flags(parser)
    parser.add_argument("--threads", type=int, help="of the CPU (default: as was measured)")
    parser.add_argument(
        "--scope",
        choices=("core", "module", "block"),
        help="what is timed: attention alone, with its projections, a layer (default: as measured)",
    )
    _pass_flag(parser, "prefill", "decode")
    parser.add_argument("--memory-gb", type=float, help="reject what needs more, in GiB")
    parser.add_argument("--milliseconds", type=float, help="reject what takes longer per pass")
    parser.add_argument("--need-weights", action="store_true", help="attention weights are needed")
    parser.add_argument(
        "--exact-only", action="store_true", help="only what is softmax attention by definition"
    )
    parser.add_argument(
        "--needs",
        nargs="+",
        default=[],
        metavar="CAPABILITY=WEIGHT",
        help="of recall, locality, hierarchy, 2d and alignment, with weights: recall=2 locality=1",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.95,
        help="share of full's lead in what is needed that must be kept (default: 0.95)",
    )
    parser.add_argument(
        "--measure", action="store_true", help="time the first three and full here, now"
    )
    parser.add_argument(
        "--into",
        default="results/pick",
        metavar="FOLDER",
        help="for the records of --measure (default: results/pick)",
    )
    json_flag(parser)


def compare_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="results folder from before")
    parser.add_argument("b", metavar="B", help="results folder from after")
    parser.add_argument(
        "--threshold", type=float, default=0.1, help="change to tolerate (default: 0.1, 10 %%)"
    )
    parser.add_argument(
        "--relative-to", metavar="NAME", help="compare times as ratios to this contestant"
    )
    parser.add_argument(
        "--what",
        default="time,memory,accuracy",
        metavar="QUANTITIES",
        help="of time, memory and accuracy, separated by commas (default: all)",
    )
    parser.add_argument("--all", action="store_true", help="list also what did not change")
    json_flag(parser)


def export_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="?", help="folder that a sweep wrote")
    parser.add_argument("--format", choices=("csv", "parquet"), help="default: as --out ends, csv")
    parser.add_argument("--out", help="file, or - for CSV here (default: RESULTS/records.FORMAT)")
    parser.add_argument(
        "--columns", action="store_true", help="print each column with its meaning and unit"
    )


def merge_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", help="folders that sweeps wrote")
    parser.add_argument("--into", required=True, metavar="FOLDER", help="created when missing")


def prepare_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", choices=("verses",), help="verses: aligned English and Spanish Bible verses"
    )
    parser.add_argument("--out", default="data/verses.tsv", help="file (default: data/verses.tsv)")
    parser.add_argument(
        "--sword", default="/usr/share/sword", help="folder of texts (default: /usr/share/sword)"
    )
    parser.add_argument("--force", action="store_true", help="write again what is there")


def fit_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory-gb", type=float, required=True, help="in GiB")
    parser.add_argument(
        "--variants",
        metavar="NAMES",
        help="separated by commas (default: the contestants of conf/attention and all others)",
    )
    parser.add_argument(
        "--vary", choices=("length", "batch"), default="length", help="default: length"
    )
    _size_flags(parser, length=1024, batch=1, heads=8, head_dim=64)
    _pattern_flag(parser)
    _place_flags(parser)
    _pass_flag(parser, "prefill", "decode")
    parser.add_argument(
        "--scope",
        choices=("core", "module", "block"),
        default="core",
        help="attention on split heads, with its projections, or a whole layer (default: core)",
    )
    parser.add_argument(
        "--timeout-s", type=float, default=60.0, help="longest run of one size (default: 60)"
    )
    parser.add_argument("--max", type=int, default=2**20, help="largest size tried (default: 2^20)")
    parser.add_argument(
        "--multiple-of",
        type=int,
        help="try such sizes only (default: lengths of whole windows, 64, and every batch)",
    )
    parser.add_argument(
        "--resolution",
        type=float,
        default=0.02,
        help="relative distance to the next size that does not fit (default: 0.02)",
    )
    json_flag(parser)


def bench_model_words(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
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
    parser.add_argument("--lengths", default="512,1024,2048", help="default: 512,1024,2048")
    parser.add_argument("--variants", help="separated by commas (default: all)")
    parser.add_argument(
        "--option",
        action="append",
        metavar="VARIANT.NAME=VALUE",
        help="option of a variant; may be repeated",
    )
    _size_flags(parser, batch=1)
    _pass_flag(parser)
    _place_flags(parser)
    parser.add_argument("--threads", type=int, help="of the CPU (default: all cores)")
    parser.add_argument(
        "--results", default="results/bench-model", help="folder (default: results/bench-model)"
    )
    json_flag(parser)


def adapt_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        help="folder of a causal or masked language model of transformers, or one that "
        "save_pretrained wrote",
    )
    parser.add_argument("--variant", required=True, help="a name that `efficient-attn list` prints")
    parser.add_argument("--text", required=True, help="file, or folder of files")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", help="for model/, adapt.json, adapt.pt"
    )
    for flag, default, what in (
        ("match-steps", 100, "of matching attention outputs"),
        ("steps", 200, "of the task"),
        ("length", 256, "tokens of a window"),
        ("batch", 8, "windows of a step"),
        ("seed", 0, "of windows and masks"),
    ):
        parser.add_argument(
            f"--{flag}", type=int, default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--rate", type=float, default=3e-4, help="learning rate of the task (default: 3e-4)"
    )
    _options_flag(parser)
    json_flag(parser)


def new_variant_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="lower case, such as my_attention")
    parser.add_argument("--folder", default=".", help="where to write (default: here)")


def doctor_words(parser: argparse.ArgumentParser) -> None:
    json_flag(parser)


def _variant_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", help="a registered name, or module:Class for one of your own")
    _options_flag(parser)


def _options_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the variant; may be repeated",
    )


def _pattern_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pattern",
        choices=("noncausal_self", "causal_self", "noncausal_cross", "causal_cross"),
        default="noncausal_self",
        help="default: noncausal_self",
    )


def _size_flags(parser: argparse.ArgumentParser, **defaults: int) -> None:
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"default: {default}")


def _place_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        default="float32",
        help="default: float32",
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")


def _pass_flag(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "--pass",
        dest="pass_",
        choices=("forward", "forward_backward", "train_step", *more),
        default="forward",
        help="default: forward",
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


def json_flag(parser: argparse.ArgumentParser) -> None:
    """For a command whose answer a program may read."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
