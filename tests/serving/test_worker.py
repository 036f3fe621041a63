"""Requests that wait are answered together, in order; too many are refused; errors end nothing."""

import threading
from concurrent.futures import Future

import pytest

from transformer_jax.serving.asked import Asked, Refused
from transformer_jax.serving.worker import LINES, Worker


class Model:
    """Answers with the requests' own lines, after `gate` is open; notes the groups."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.groups = []

    def __call__(self, asked):
        self.begun.set()
        assert self.gate.wait(10)
        self.groups.append([one.lines[0] for one in asked])
        if asked[0].lines == ["broken"]:
            raise RuntimeError("the device is gone")
        return [Refused(413, "no") if one.lines == ["no"] else one.lines for one in asked]


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def busy(model):
    """Starts a worker that is answering request 0; the gate ends that."""
    workers = []

    def start(most):
        worker = Worker(model, most)
        workers.append(worker)
        first = worker.ask(Asked(["0"]))
        assert model.begun.wait(10)
        return worker, first

    yield start
    model.gate.set()
    for worker in workers:
        worker.stop()


def test_requests_that_come_while_the_model_is_busy_share_the_next_call(model, busy):
    worker, first = busy(6)
    others = [worker.ask(Asked([name])) for name in ("1", "no", "3")]
    others += [worker.ask(Asked([str(n)] * (LINES - 2))) for n in (4, 5)]
    with pytest.raises(Refused) as refused:  # one is being answered, five wait
        worker.ask(Asked(["6"]))
    assert refused.value.status == 503
    model.gate.set()
    assert first.result(10) == ["0"]
    assert [one.result(10)[0] for one in (others[0], *others[2:])] == ["1", "3", "4", "5"]
    with pytest.raises(Refused, match="no"):
        others[1].result(10)
    assert model.groups == [["0"], ["1", "no", "3"], ["4"], ["5"]]
    worker.stop()
    with pytest.raises(Refused, match="stopping"):
        worker.ask(Asked(["7"]))


def test_a_request_that_is_given_up_harms_no_other_and_all_places_are_free_again(model, busy):
    worker, first = busy(3)
    given_up, other = (worker.ask(Asked([name])) for name in "12")
    assert given_up.cancel()
    model.gate.set()
    assert (first.result(10), other.result(10)) == (["0"], ["2"])
    assert model.groups == [["0"], ["2"]]
    last = [worker.ask(Asked([name])) for name in "345"]
    worker.stop()
    assert all(one.done() for one in last), "what waits is answered before the end"


def test_who_gets_an_answer_may_ask_again_at_once(model, busy):
    worker, first = busy(1)
    second: Future[Future[list[str]]] = Future()
    first.add_done_callback(lambda _: second.set_result(worker.ask(Asked(["1"]))))
    model.gate.set()
    assert second.result(10).result(10) == ["1"]


def test_a_request_that_fails_is_reported_and_harms_none_of_its_group(model, busy, caplog):
    worker, first = busy(8)
    broken, whole = worker.ask(Asked(["broken"])), worker.ask(Asked(["1"]))  # they wait together
    model.gate.set()
    with pytest.raises(Refused) as refused:
        broken.result(10)
    assert refused.value.status == 500 and "the device is gone" in caplog.text
    assert (first.result(10), whole.result(10)) == (["0"], ["1"])
    assert model.groups == [["0"], ["broken", "1"], ["broken"], ["1"]]
