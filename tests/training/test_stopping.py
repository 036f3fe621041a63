"""Signals that ask a run to stop: the first one asks, a second one has its usual effect."""

import concurrent.futures
import signal

import pytest

from transformer_jax.training import stopping
from transformer_jax.training.stopping import ASKING, StopRequest


@pytest.fixture(autouse=True)
def usual():
    """Python's own handler of SIGINT, which a shell's background job may not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_later_signal_has_its_usual_effect_and_the_same_one_twice_counts_once(monkeypatch):
    with StopRequest() as stop:
        assert not stop.at_step(1)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.at_step(2) and stop.signal == signal.SIGUSR1
        signal.raise_signal(signal.SIGUSR1)  # it would end this process
        monkeypatch.setattr(stopping, "SAME", 0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_afterwards_signals_are_handled_as_before():
    before = [signal.getsignal(number) for number in ASKING]
    with StopRequest():
        assert all(signal.getsignal(number) not in before for number in ASKING)
    assert [signal.getsignal(number) for number in ASKING] == before


def test_in_another_thread_signals_are_not_handled():
    """Python sets handlers in the main thread only; a notebook may train in another one."""

    def stops() -> bool:
        with StopRequest() as stop:
            return stop.at_step(1)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(stops).result() is False
