"""What a person sees of trainings while they run."""

import io

import pytest
from rich.console import Console
from synthetic import accuracy

from efficient_attn.bench.progress import BETWEEN_LINES_S, SweepProgress
from efficient_attn.bench.training_state import TrainingState, duration, sparkline


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_pace_and_time_left_over_all_rates(clock: Clock) -> None:
    state = TrainingState("full", steps=100, rates=3, clock=clock)
    assert (state.share, state.running, state.steps_per_second) == (0.0, False, None)
    state.hear(0, 1, 4.0, None)
    assert (state.running, state.seconds_left) == (True, None)
    clock.now += 10
    state.hear(0, 100, 2.0, 0.5)
    assert state.steps_per_second == pytest.approx(99 / 10)
    clock.now += 10
    state.hear(1, 50, 3.0, None)
    assert state.steps_per_second == pytest.approx(149 / 20)
    assert state.seconds_left == pytest.approx(150 / (149 / 20))
    assert state.share == pytest.approx(0.5)
    assert (state.losses, state.validation) == ([3.0], None), "those of the present rate"
    assert state.words() == [
        "full", "rate 2/3", "step 50/100", "7.45 steps/s", "20 s left", "loss 3", "",
    ]  # fmt: skip
    state.ended = True
    assert (state.share, state.running) == (1.0, False)


def test_a_curve_in_blocks() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([2.0], 5) == "▁"
    assert sparkline([7, 6, 5, 4, 3, 2, 1, 0], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([8, 6, 1, 1], 2) == "█▁", "means of 7 and 1"
    assert len(sparkline(range(1000), 20)) == 20
    assert sparkline([3.0] * 4, 4) == "▁▁▁▁"


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(s) for s in (3.2, 89, 100, 3600)] == ["3 s", "89 s", "2 min", "60 min"]


def running(clock: Clock, name: str = "full") -> TrainingState:
    state = TrainingState(name, steps=1000, rates=1, clock=clock)
    state.hear(0, 1, 4.0, None)
    return state


def test_outside_a_terminal_a_training_has_a_line_now_and_then(clock: Clock) -> None:
    out = io.StringIO()
    progress = SweepProgress(4, Console(file=out, width=200), clock)
    states = running(clock), running(clock, "performer")
    with progress:
        for step in range(2, 200):
            clock.now += 1.0
            states[0].hear(0, step, 2.0, None)
            progress.during("cell", sum(s.share for s in states) / 2, 2, "", states)
        states[0].ended = True
        progress.stored("cell", accuracy("full", value=0.75, train_seconds=7))
        progress.stored("cell", accuracy("linformer", status="unsupported"))
    lines = out.getvalue().splitlines()
    told = [line for line in lines if line.startswith("cell  full: step")]
    assert len(told) == 198 // int(BETWEEN_LINES_S)
    assert "1 steps/s" in told[0]
    assert "loss 2" in told[0]
    # 32 + 1 steps of 4000 took 31 s.
    assert told[0].endswith(f"[sweep 1%, about {31 * 3967 / 33 / 60:.0f} min left]")
    assert lines[-2] == "cell  full: accuracy 0.750, trained in 7 s at the rate 0.001"
    assert lines[-1] == "cell  linformer: unsupported"
    assert "\x1b" not in out.getvalue()


def test_in_a_terminal_running_trainings_stand_below_the_bar(clock: Clock) -> None:
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=True)
    progress = SweepProgress(4, console, clock)
    states = running(clock), running(clock, "performer"), TrainingState("linformer", 10, 1)
    for step, loss in enumerate((4.0, 3.0, 2.0, 1.0), start=2):
        clock.now += 0.5
        states[0].hear(0, step, loss, 0.25)
    states[1].ended = True
    with progress:
        progress.during("cell", 0.5, 2, "", states)
        console.print(progress._picture())
    text = out.getvalue()
    line = next(line for line in text.splitlines() if "full" in line)
    for words in ("step 5/1000", "2 steps/s", "loss 1", "validation 0.25", "█▆▃▁"):
        assert words in line
    assert "25%" in text
    assert "performer" not in text
    assert "linformer" not in text
