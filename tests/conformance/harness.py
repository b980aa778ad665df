"""Runs cases against `octet serve` and tells what came of them as TAP.

A case is a function of one Bed whose docstring is the claim; it fails by an exception. `needs` names
what a server must have for it to make sense (see Bed.has); without that it is skipped.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import anthropic
import openai

KEY = "sk-conformance"
START_S = 60
CLIENT_TIMEOUT_S = 60

CASES = []


def mock(step_ms):
    """Arguments for a mock whose steps take that long."""
    world = f"mock:fixed_ns={step_ms}000000,clock=real"
    return ["smollm2-135m", "--load-format", "dummy", "--backend", world]


def case(*needs):
    def add(function):
        CASES.append((function, needs))
        return function

    return add


class Server:
    """`octet serve` with these arguments, on a port of its own choice, from `with` to its end."""

    def __init__(self, *arguments, key=KEY):
        self.arguments = list(arguments)
        self.key = key
        self.url = None

    def __enter__(self):
        octet = os.path.join(os.environ["OCT_BUILDDIR"], "octet")
        command = [octet, "serve", *self.arguments, "--port", "0"]
        if self.key:
            command += ["--api-key", self.key]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.watchdog = threading.Timer(START_S, self.process.kill)
        self.watchdog.start()
        for line in self.process.stdout:
            found = re.search(r"serving .* on (http://\S+)", line)
            if found:
                self.url = found.group(1)
                break
        self.watchdog.cancel()
        if not self.url:
            self.process.wait()
            raise RuntimeError("octet serve did not start:\n" + self.told())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return self

    def told(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def stop(self):
        """Ends it as an operator does; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return "killed"
        return self.process.returncode

    def __exit__(self, *unused):
        self.stop()
        self.log.close()


class Bed:
    """A running server and clients for it. has: "text" (answers mean something), "mock"."""

    def __init__(self, server, name, has):
        self.server = server
        self.name = name
        self.has = set(has)
        self.client = self.openai()
        self.anthropic = anthropic.Anthropic(
            base_url=server.url, api_key=server.key, max_retries=0, timeout=CLIENT_TIMEOUT_S
        )
        self.model = self.client.models.list().data[0].id

    def openai(self, **options):
        given = dict(
            base_url=self.server.url + "/v1",
            api_key=self.server.key,
            max_retries=0,
            timeout=CLIENT_TIMEOUT_S,
        )
        return openai.OpenAI(**{**given, **options})

    # Short ways to ask, with greedy and short answers unless told otherwise.
    def complete(self, prompt="Once upon a time", **options):
        given = dict(model=self.model, prompt=prompt, max_tokens=8, temperature=0)
        return self.client.completions.create(**{**given, **options})

    def chat(self, content="Say hello.", **options):
        given = dict(model=self.model, max_tokens=8, temperature=0)
        given["messages"] = [{"role": "user", "content": content}]
        return self.client.chat.completions.create(**{**given, **options})


@contextlib.contextmanager
def raises(kind, *parts, status=None):
    """The body raises exactly this class of error, whose text has all `parts`."""
    try:
        yield
    except openai.OpenAIError as error:
        check(type(error) is kind, f"{type(error).__name__} in place of {kind.__name__}: {error}")
        for part in parts:
            check(part in str(error), f"no {part!r} in {error}")
        if status is not None:
            check(error.status_code == status, f"status {error.status_code}, not {status}")
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def check(good, why):
    if not good:
        raise AssertionError(why)


def equal(got, wanted, what="value"):
    check(got == wanted, f"{what}: got {got!r}, wanted {wanted!r}")


class Tap:
    def __init__(self):
        self.n = 0
        self.failed = 0

    def result(self, good, claim, note=None):
        self.n += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.n} - {claim}", flush=True)
        if note:
            print("".join(f"# {line}\n" for line in note.splitlines()), end="", flush=True)

    def skip(self, claim, why):
        self.n += 1
        print(f"ok {self.n} - {claim} # SKIP {why}", flush=True)

    def done(self):
        print(f"1..{self.n}", flush=True)
        return 1 if self.failed else 0


def claim_of(bed_name, function):
    return f"{bed_name}: {function.__doc__.strip().splitlines()[0]}"


def told_of(error):
    """What happened, and where in the cases."""
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [
        f"{os.path.basename(f.filename)}:{f.lineno}: {f.line}"
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename.startswith(here) and not f.filename.endswith("harness.py")
    ]
    return "\n".join([*frames, f"{type(error).__name__}: {error}"])


def report_bug(function, error):
    """One line for whoever mends the server, where OCT_CONFORMANCE_BUGS names a file."""
    path = os.environ.get("OCT_CONFORMANCE_BUGS")
    if path:
        with open(path, "a") as bugs:
            bugs.write(f"{function.__name__}: {str(error)[:300]}\n".replace("\n", " ") + "\n")


def run_cases(tap, bed):
    for function, needs in CASES:
        claim = claim_of(bed.name, function)
        missing = [need for need in needs if need not in bed.has]
        if missing:
            tap.skip(claim, f"needs {', '.join(missing)}")
            continue
        begun = time.monotonic()
        try:
            function(bed)
            tap.result(True, claim)
        except Exception as error:
            tap.result(False, claim, told_of(error) + f"\nafter {time.monotonic() - begun:.1f} s")
            report_bug(function, error)
        if bed.server.process.poll() is not None:
            tap.result(False, f"{bed.name}: the server is there after {function.__name__}",
                       bed.server.told())
            return


def run_bed(tap, name, arguments, has):
    try:
        with Server(*arguments) as server:
            run_cases(tap, Bed(server, name, has))
            if server.process.poll() is None:
                equal(server.stop(), 0, "exit status")
                tap.result(True, f"{name}: it ends in order")
    except Exception:
        tap.result(False, f"{name}: the server starts, serves and ends in order",
                   traceback.format_exc(limit=-3))


if __name__ == "__main__":
    sys.exit("run conformance.py")
