import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_CHILD = """
import os, time
from torchrelay.core.process import die_with, leave_stopping_to_parent
leave_stopping_to_parent()
assert die_with(os.getppid())
print("ready", flush=True)
time.sleep(60)
"""
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def test_a_child_outlives_requests_to_stop_but_not_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
        time.sleep(0.2)
        assert _state(child) in "SR"
        parent.kill()
    deadline_s = time.monotonic() + 5
    while _state(child) not in ("gone", "Z") and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert _state(child) in ("gone", "Z")


def test_a_parent_that_is_gone_is_told() -> None:
    code = "from torchrelay.core.process import die_with; print(die_with(999999))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "False"
