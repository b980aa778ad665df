#!/bin/sh
# Writes configure, Makefile.in and config.h.in from configure.ac and Makefile.am. Run it after a
# fresh clone; later changes of those files are picked up by make itself.
set -eu
cd "$(dirname "$0")"
mkdir -p build-aux
exec autoreconf --install --force --warnings=all,error
