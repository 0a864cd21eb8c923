#!/bin/sh
# Writes the Python stubs of every proto next to the packages that import them, and formats nothing by hand.
# PYTHON: an interpreter that has the generators (grpcio-tools 1.62.3, mypy-protobuf 3.6.0). OUT: where to write.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-.}
PATH="$(dirname "$PYTHON"):$PATH"
protoc() { "$PYTHON" -W ignore -m grpc_tools.protoc -Iproto "$@"; }
set -- proto/limiter/v1/limiter.proto proto/executor_service/v1/executor.proto proto/rollout/v1/rollout.proto  # those with services
protoc --python_out="$OUT" --mypy_out="$OUT" proto/fairbox/v1/common.proto "$@"
protoc --grpc_python_out="$OUT" --mypy_grpc_out="$OUT" "$@"
