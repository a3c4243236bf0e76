"""The `efficient-attn` command. Nothing heavy is imported before a word is known to need it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

from efficient_attn import __version__
from efficient_attn.commands import sweep_words, words
from efficient_attn.commands.options import look_here

OK, WRONG_REQUEST = 0, 2


@dataclass(frozen=True)
class Command:
    """A word of the command line: what it takes, says of itself, and which function it runs."""

    name: str
    add_words: Callable[[argparse.ArgumentParser], None]
    summary: str
    example: str
    module: str | None = None
    function: str = "main"

    def load(self) -> Callable[..., int]:
        module = self.module or self.name.replace("-", "_")
        return getattr(import_module(f"efficient_attn.commands.{module}"), self.function)


COMMANDS = (
    Command(
        "list",
        words.list_words,
        "List the attention variants.",
        "efficient-attn list --causal",
        module="variants",
        function="list_command",
    ),
    Command(
        "describe",
        words.describe_words,
        "Tell what a variant is, what it costs, what it can do and its options.",
        "efficient-attn describe performer",
        module="variants",
        function="describe_command",
    ),
    Command(
        "check",
        words.check_words,
        "Observe what a variant really does, beside what it declares; 1 where they differ.",
        "efficient-attn check my_module:MyAttention --option window=8",
    ),
    Command(
        "show",
        words.show_words,
        "Draw who sees whom, and the weights of each head.",
        "efficient-attn show local_window --option window=4 --pattern causal_self",
    ),
    Command(
        "sweep",
        sweep_words.add_words,
        "Measure contestants over lengths, passes, tasks and seeds; resumes where it ended.",
        sweep_words.EXAMPLE,
    ),
    Command(
        "plot",
        words.plot_words,
        "Draw complexity curves, crossovers, fronts, peak shares and accuracy of a results folder.",
        "efficient-attn plot results/demo",
    ),
    Command(
        "report",
        words.report_words,
        "Write one HTML page that needs no network: curves, tables, failures, and a picker.",
        "efficient-attn report results/demo --out report.html",
    ),
    Command(
        "pick",
        words.pick_words,
        "Rank the variants for a workload, with the evidence.",
        "efficient-attn pick --length 8192 --pattern causal_self --from results/demo",
    ),
    Command(
        "compare",
        words.compare_words,
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
    ),
    Command(
        "export",
        words.export_words,
        "Write the records of a results folder as one CSV or Parquet table.",
        "efficient-attn export results/demo --out demo.parquet\n  efficient-attn export --columns",
    ),
    Command(
        "merge",
        words.merge_words,
        "Bring the records of several results folders together; the newest of each stays.",
        "efficient-attn merge node1/results node2/results --into results/all",
    ),
    Command(
        "prepare",
        words.prepare_words,
        "Write a data set that the system has installed as a file for the tasks.",
        "efficient-attn prepare verses --out data/verses.tsv",
    ),
    Command(
        "fit",
        words.fit_words,
        "Find the largest length or batch that fits a given memory, by measured runs.",
        "efficient-attn fit --memory-gb 8 --pass forward_backward\n"
        "  efficient-attn fit --memory-gb 2 --vary batch --length 4096 --variants full,linformer\n"
        "\n"
        "What counts is every tensor: inputs, parameters and the exact peak of what the pass adds\n"
        "to them. A size that was too slow, or too large for this machine, does not show what\n"
        "fits: the answer is then 'at least' the largest size that was measured. Exits with 1\n"
        "when a variant has no answer at all.",
    ),
    Command(
        "bench-model",
        words.bench_model_words,
        "Time a whole model with its own attention, without any, and with each variant.",
        "efficient-attn bench-model --hf-config bert --lengths 512,1024,2048,4096\n"
        "  efficient-attn bench-model --model my_module:make --variants local_window \\\n"
        "      --option local_window.window=64 --pass forward_backward\n"
        "\n"
        "The share of time in attention is what no swap can save more than. What was measured\n"
        "already in the results folder is not measured again.",
    ),
    Command(
        "adapt",
        words.adapt_words,
        "Give a trained language model another attention, and teach it on your text.",
        "efficient-attn adapt CHECKPOINT --variant local_window --option window=64 \\\n"
        "      --text my_texts/ --out adapted\n"
        "\n"
        "First the new attention learns to give what the old one gave, then the model learns its\n"
        "task for a while. The end of the text is kept apart: the metric before, after the swap\n"
        "and after adapting is of it. A run that was stopped goes on from OUT/adapt.pt.",
    ),
    Command(
        "new-variant",
        words.new_variant_words,
        "Write a variant of your own: one Python file, and one YAML that enters it in sweeps.",
        "efficient-attn new-variant my_attention\n  efficient-attn check my_attention:MyAttention",
    ),
    Command(
        "doctor",
        words.doctor_words,
        "Print the environment and check it.",
        "efficient-attn doctor",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 only when all that was asked was done."""
    look_here()
    parser = _parser()
    _complete(parser)
    command = {one.name: one for one in COMMANDS}
    # A sweep's words are Hydra's, which argparse would take apart.
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["sweep"] and not {"-h", "--help"} & set(given):
        if "--dry-run" not in given:  # workers' modules load while the sweep's own do
            import_module("efficient_attn.bench.cell").start_server()
        return command["sweep"].load()(given[1:])
    chosen = parser.parse_args(given)
    if chosen.command is None:
        parser.print_help()
        return WRONG_REQUEST
    try:
        return command[chosen.command].load()(chosen)
    except (ValueError, OSError, LookupError, ImportError) as error:
        print(f"efficient-attn {chosen.command}: {error}", file=sys.stderr)
        return WRONG_REQUEST


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line may go on, and end; nothing otherwise."""
    if "_ARGCOMPLETE" in os.environ:
        with suppress(ImportError):
            import_module("argcomplete").autocomplete(parser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="efficient-attn",
        description="Measure, compare and pick attention mechanisms.",
        epilog="example: efficient-attn sweep +experiment=demo",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for one in COMMANDS:
        one.add_words(
            commands.add_parser(
                one.name,
                help=one.summary,
                description=one.summary,
                epilog=f"example:\n  {one.example}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
