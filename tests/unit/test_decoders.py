"""Decoders are made by one thread at a time: half a description of a type ends the process."""

import subprocess
import sys

import pytest

from hermes_protocol.decoders import convert

SLOW_TYPE = """
import sys, threading, time
import msgspec

def slowly():
    begun.set()
    time.sleep(0.5)
    return int

begun = threading.Event()

class Part(msgspec.Struct):
    number: "slowly()"

class Answer(msgspec.Struct):
    part: Part
"""
"""A type whose description takes a while, as one does on a busy machine."""

THREADS = """
from hermes_protocol.client import decode_result
from hermes_protocol.decoders import convert

def first():
    data = msgspec.msgpack.encode({"part": {"number": 1}})
    assert decode_result(data, Answer).part.number == 1

def second():
    begun.wait()
    assert convert({"part": {"number": 2}}, Answer).part.number == 2
    done.append(True)

done = []
threads = [threading.Thread(target=one) for one in (first, second)]
[one.start() for one in threads]
[one.join() for one in threads]
assert done
"""

FORK = """
import os
from hermes_protocol.decoders import decoder

thread = threading.Thread(target=decoder, args=(Answer,))
thread.start()
begun.wait()
child = os.fork()
if not child:
    decoder(Answer).decode(msgspec.msgpack.encode({"part": {"number": 1}}))
    decoder(list[Answer])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.parametrize("program", [THREADS, FORK], ids=["threads", "fork"])
def test_type_that_another_thread_describes_is_waited_for(program, tmp_path):
    (tmp_path / "program.py").write_text(SLOW_TYPE + program)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_signal_handler_may_decode_while_a_decoder_is_made(tmp_path):
    """A lock that its thread cannot take twice would hang it."""
    program = """
import signal
from hermes_protocol.decoders import decoder

signal.signal(signal.SIGALRM, lambda *_: decoder(list[str]).decode(b"\\x90"))
signal.setitimer(signal.ITIMER_REAL, 0.1)
decoder(Answer)
"""
    (tmp_path / "program.py").write_text(SLOW_TYPE + program)
    subprocess.run([sys.executable, tmp_path / "program.py"], check=True, timeout=60)


def test_document_of_another_form_is_an_error():
    with pytest.raises(ValueError, match="Expected"):
        convert([1], dict[str, int])
