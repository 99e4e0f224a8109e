"""Signals that the processes of the tests hear, however the tests themselves were started.

An ignored signal stays ignored in every process that is started, and a blocked one stays blocked.
``nohup`` ignores SIGHUP, and a shell ignores SIGINT for what it runs in the background. The product
respects the former, as it should; a test that ends a process by such a signal then waits in vain.
"""

import signal

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hear_signals() -> None:
    """Let every process that is started from now on begin with the signals that end it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    for number in ENDS:
        if signal.getsignal(number) is signal.SIG_IGN:
            # A handler, not the default action: the tests outlive the terminal under nohup, and a
            # handler, unlike SIG_IGN, does not outlive the start of another program.
            keeps = signal.default_int_handler if number == signal.SIGINT else _go_on
            signal.signal(number, keeps)


def _go_on(_number: int, _frame: object) -> None:
    pass
