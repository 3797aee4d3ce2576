#!/usr/bin/env bash
# What is to be seen on a machine with a GPU, in one run of less than 8 minutes, without a network: the tests of the KV
# path with the pool on the GPU, then tests/bench/device.py. See docs/benchmarks.md.
#
#   tests/bench/device.sh [FOLDER FOR RESULTS]
#
# PYTHON (default python3) has to have torch with CUDA. What else it lacks is taken from wheels in build/wheels.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-python3}
results=${1:-build/device}
site=$(mktemp -d) || exit 2
trap 'rm -rf "$site"' EXIT
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1
say() { echo "device.sh: $*" >&2; }

if ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    say "$python has no torch that sees a GPU: nothing was tested or measured"
    exit 2
fi
if compgen -G 'build/wheels/*.whl' >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --target "$site" build/wheels/*.whl || exit 2
fi
missing() { "$python" -c 'import importlib.util, sys; print(*(n for n in sys.argv[1:] if not importlib.util.find_spec(n)))' "$@"; }
if [ -n "$(missing numpy zstandard)" ]; then
    say "missing: $(missing numpy zstandard); put wheels into build/wheels"
    exit 2
fi
mkdir -p "$results" || exit 2

status=0
if [ -n "$(missing pytest hypothesis apsw)" ]; then
    say "missing: $(missing pytest hypothesis apsw); the tests did not run"
    status=1
else
    # Not the project's settings: they ask for plugins that may not be there.
    timeout 200 "$python" -m pytest -c /dev/null --rootdir . --import-mode=importlib -p no:cacheprovider -q -rs \
        tests/kv/test_{codec,pool,rope,rows,pager,table,gpu}.py 2>&1 | tee "$results/tests.txt" || status=1
fi
timeout 260 "$python" tests/bench/device.py | tee "$results/device.txt" || status=1
exit $status
