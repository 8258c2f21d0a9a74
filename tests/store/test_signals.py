"""What ends a wait: set from other threads, and from the handlers of signals."""

import subprocess
import sys

from evenflow.store.signals import Interrupt

# A handler that begins while another one is inside of `set`, as when two children end at the same moment.
NESTED = """
import faulthandler, signal, time
from evenflow.store.signals import Interrupt
faulthandler.dump_traceback_later(20, exit=True)
interrupt, times = Interrupt(), [0]
def note(*_):
    times[0] += 1
    interrupt.set()
signal.signal(signal.SIGALRM, note)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while times[0] < 3000:
    interrupt.set()
    interrupt.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_s_handler_may_interrupt_what_is_being_interrupted() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_an_interrupt_that_came_before_the_wait_ends_it_at_once() -> None:
    interrupt = Interrupt()
    interrupt.set()
    assert interrupt.wait(30)
    assert not interrupt.wait(0), "it counts once"
    interrupt.close()
    interrupt.set()  # after its end: nothing happens
