#!/bin/sh
# Asks `octet serve` through the official clients of OpenAI and Anthropic. They are installed by
# ./run-tests into conformance-venv of the build folder (OCT_VENV names another).
. "$OCT_SRCDIR/tests/tap"
venv=${OCT_VENV:-$OCT_BUILDDIR/conformance-venv}
if ! "$venv/bin/python" -c "import openai, anthropic" 2>/dev/null; then
  why="the clients are not installed: ./run-tests does, from PyPI"
  [ -s "$venv.why" ] && why=$(head -n 1 "$venv.why")
  skip "the official clients are answered" "$why"
  done_testing
fi
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
exec "$venv/bin/python" "$OCT_SRCDIR/tests/conformance/conformance.py"
