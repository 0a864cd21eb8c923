#!/usr/bin/env bash
# Trains a model on GSM8K with the code interpreter, from the data to the model that is written: rollouts of several
# turns on sglang, programs in the sandbox under the cluster's limit, rewards, updates by FSDP2. Start from here.
#
#   FAIRBOX_MODEL=/models/qwen FAIRBOX_N_GPUS=8 FAIRBOX_DATA_FILE=gsm8k/train.jsonl \
#     tests/special_e2e/run_gsm8k_fsdp_sgl_multiturn_sf_tool.sh
#   FAIRBOX_MODEL=smollm2 FAIRBOX_ENGINE=transformers FAIRBOX_N_GPUS=0 FAIRBOX_STEPS=2 \
#     tests/special_e2e/run_gsm8k_fsdp_sgl_multiturn_sf_tool.sh
#
# What follows the command goes to `fairbox train` as it is (update.epochs=2). The same FAIRBOX_OUT goes on where it
# stopped.
set -euo pipefail
unset TRAIN_FILE TRAIN_FILES TRAIN_BATCH_SIZE  # scripts of verl export them; to `fairbox train` they would be settings
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}

MODEL=${FAIRBOX_MODEL:-smollm2}              # folder of a model in the layout of the Hugging Face hub, or smollm2
ENGINE=${FAIRBOX_ENGINE:-sglang}             # what samples: sglang, or transformers (in this process, on the CPU)
ENGINE_URLS=${FAIRBOX_ENGINE_URLS:-}         # sglang servers that run already, with commas; empty: started here
N_GPUS=${FAIRBOX_N_GPUS:-}                   # GPUs of this machine to use; empty: all; 0: none
ENGINE_GPUS=${FAIRBOX_ENGINE_GPUS:-}         # how many of them sample, one server each; empty: half, or the only one too
SHARDS=${FAIRBOX_SHARDS:-}                   # processes that hold the model that is trained; empty: one a GPU that is left
DATA_FILE=${FAIRBOX_DATA_FILE:-}             # GSM8K's train.jsonl, or a parquet; empty: that of FAIRBOX_DATA, or built in
EVAL_DATA=${FAIRBOX_EVAL_DATA:-}             # the same, held out; empty: no evaluation
OUT=${FAIRBOX_OUT:-out/gsm8k-$(date +%Y%m%d-%H%M%S)}
STEPS=${FAIRBOX_STEPS:-100}
PROMPTS_PER_STEP=${FAIRBOX_PROMPTS_PER_STEP:-32} # problems of a step
SAMPLES=${FAIRBOX_SAMPLES:-8}                # trajectories of a problem
MAX_TURNS=${FAIRBOX_MAX_TURNS:-5}
MAX_TURN_TOKENS=${FAIRBOX_MAX_TURN_TOKENS:-512}
MAX_RESPONSE_TOKENS=${FAIRBOX_MAX_RESPONSE_TOKENS:-2048}
CONCURRENCY=${FAIRBOX_CONCURRENCY:-64}       # trajectories that run at once
LORA_RANK=${FAIRBOX_LORA_RANK:-0}            # 0: all weights are trained
LR=${FAIRBOX_LR:-1e-6}
PYTHON=${FAIRBOX_PYTHON:-$(command -v "$ROOT/.venv/bin/python" || command -v python3 || true)}
SGLANG_PYTHON=${FAIRBOX_SGLANG_PYTHON:-$(command -v "$ROOT/.venv-sglang/bin/python" || command -v python3 || true)}
SGLANG_ARGS=${FAIRBOX_SGLANG_ARGS:-}         # further arguments of the servers
START_S=${FAIRBOX_START_S:-1200}             # longest wait for the servers
CHECKED_ROWS=${FAIRBOX_CHECKED_ROWS:-4}      # trajectories whose logprobs are computed again on the CPU; 0: none
CHECKED_TOLERANCE=${FAIRBOX_CHECKED_TOLERANCE:-} # how far they may be apart; empty: 1e-4 in float32, 1 in bfloat16

die() { echo "${0##*/}: $*" >&2; exit 2; }
number() { [[ ${!1} =~ ^[0-9]+$ ]] || die "FAIRBOX_$1 is '${!1}', must be a whole number of at least 0"; }

[[ $ENGINE == sglang || $ENGINE == transformers ]] || die "FAIRBOX_ENGINE is '$ENGINE', must be sglang or transformers"
[[ $MODEL == smollm2 || -f $MODEL/config.json ]] ||
  die "FAIRBOX_MODEL is '$MODEL', must be smollm2 or a folder with config.json"
if [[ -z $N_GPUS ]]; then
  N_GPUS=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
fi
number N_GPUS
if [[ -z $ENGINE_GPUS ]]; then
  ENGINE_GPUS=$((N_GPUS > 1 ? N_GPUS / 2 : N_GPUS))
  [[ $ENGINE == sglang && -z $ENGINE_URLS ]] || ENGINE_GPUS=0
fi
number ENGINE_GPUS
LEARNER_GPUS=$((N_GPUS > ENGINE_GPUS ? N_GPUS - ENGINE_GPUS : N_GPUS > 0))
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$( ((N_GPUS > 0)) && seq -s, 0 $((N_GPUS - 1)) || true)}"
SHARDS=${SHARDS:-$((LEARNER_GPUS > 1 ? LEARNER_GPUS : 1))}
for name in SHARDS STEPS PROMPTS_PER_STEP SAMPLES LORA_RANK CHECKED_ROWS START_S; do number "$name"; done
((ENGINE_GPUS <= N_GPUS)) || die "FAIRBOX_ENGINE_GPUS is $ENGINE_GPUS, must be at most FAIRBOX_N_GPUS, which is $N_GPUS"
((N_GPUS == 0 || SHARDS <= LEARNER_GPUS)) ||
  die "FAIRBOX_SHARDS is $SHARDS, must be at most the $LEARNER_GPUS GPUs that are left"
if [[ -z $DATA_FILE && -n ${FAIRBOX_DATA:-} && -f ${FAIRBOX_DATA:-}/gsm8k/train.jsonl ]]; then
  DATA_FILE=$FAIRBOX_DATA/gsm8k/train.jsonl
fi
for name in DATA_FILE EVAL_DATA; do
  [[ -z ${!name} || -f ${!name} ]] || die "FAIRBOX_$name is '${!name}', which is no file"
done
FIND='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))'
has() { "$1" -c "$FIND" "${@:2}"; }
[[ -n $PYTHON ]] || die "there is no Python: run 'make run', or set FAIRBOX_PYTHON"
has "$PYTHON" torch transformers peft grpc ||
  die "FAIRBOX_PYTHON is '$PYTHON', which can't train: run pip install 'fairbox[engine,train,ray,sglang]' there"
((SHARDS == 1)) || has "$PYTHON" ray || die "FAIRBOX_SHARDS is $SHARDS, which needs ray: run pip install 'fairbox[ray]'"
if [[ $ENGINE == sglang && -z $ENGINE_URLS ]]; then
  has "$SGLANG_PYTHON" sglang ||
    die "FAIRBOX_SGLANG_PYTHON is '$SGLANG_PYTHON', which has no sglang: set it, FAIRBOX_ENGINE_URLS or FAIRBOX_ENGINE"
fi

fairbox() { "$PYTHON" -m rollout.cli "$@"; }
servers=()
stop_servers() {
  for pid in "${servers[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for pid in "${servers[@]}"; do
    for _ in {1..20}; do kill -0 -- "-$pid" 2>/dev/null || break; sleep 1; done
    kill -KILL -- "-$pid" 2>/dev/null || true
  done
  servers=()
}
trap stop_servers EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$OUT"
MODEL_DIR=$("$PYTHON" -c 'import sys; from rollout.engines import find_model; print(find_model(sys.argv[1]))' "$MODEL")

echo "== data"
words=()
if [[ -z $DATA_FILE ]]; then
  echo "FAIRBOX_DATA_FILE is empty: the project's own problems are played"
else
  if [[ $DATA_FILE == *.jsonl ]]; then
    fairbox data gsm8k input="$DATA_FILE" out="$OUT/data/train.parquet" tool=false
    DATA_FILE=$OUT/data/train.parquet
  fi
  words+=(data="$DATA_FILE")
fi
[[ -z $EVAL_DATA ]] || words+=(eval_data="$EVAL_DATA")

echo "== engine: $ENGINE"
words+=(engine.kind="$ENGINE")
if [[ $ENGINE == sglang && -z $ENGINE_URLS ]]; then
  args=(--model-path "$MODEL_DIR" --host 127.0.0.1)
  if ((N_GPUS == 0)); then
    export SGLANG_USE_CPU_ENGINE=1 OMP_WAIT_POLICY=passive
    args+=(--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch
      --grammar-backend none --max-total-tokens 8192 --context-length 2048 --max-running-requests 16
      --mem-fraction-static 0.2 --skip-server-warmup --sleep-on-idle
      --cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled)
  elif ((ENGINE_GPUS == N_GPUS)); then
    args+=(--mem-fraction-static 0.3)  # the model that is trained is on the same GPU
  fi
  read -ra more <<<"$SGLANG_ARGS"
  for ((number = 0; number < (ENGINE_GPUS > 0 ? ENGINE_GPUS : 1); number++)); do
    port=$("$PYTHON" -c 'from fairbox.net.ports import free_port; print(free_port())')
    gpu=${gpus[N_GPUS - ENGINE_GPUS + number]:-}
    log=$OUT/sglang-$number.log
    CUDA_VISIBLE_DEVICES=$gpu HF_HUB_OFFLINE=1 SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 \
      setsid "$SGLANG_PYTHON" -m sglang.launch_server "${args[@]}" --port "$port" "${more[@]}" >"$log" 2>&1 &
    servers+=($!)
    ENGINE_URLS=${ENGINE_URLS:+$ENGINE_URLS,}http://127.0.0.1:$port
  done
  PROBE='import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=5)'
  urls=${ENGINE_URLS//,/ }
  number=0
  for url in $urls; do
    until "$PYTHON" -c "$PROBE" "$url" 2>/dev/null; do
      kill -0 "${servers[$number]}" 2>/dev/null || die "server $number ended: see $OUT/sglang-$number.log"
      ((SECONDS < START_S)) || die "server $number did not answer within $START_S s: $OUT/sglang-$number.log"
      sleep 1
    done
    number=$((number + 1))
  done
fi
[[ $ENGINE == transformers ]] || words+=("engine.urls=[$ENGINE_URLS]")

echo "== training: $SHARDS process(es), $LEARNER_GPUS GPU(s); limiter and executor on this machine"
dtype=float32
if ((LEARNER_GPUS > 0)); then
  dtype=bfloat16
  words+=(policy.device=cuda policy.recompute=true)
fi
if ((SHARDS > 1)); then
  words+=(shards.count="$SHARDS" ray_address="${RAY_ADDRESS:-local}")
fi
CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:0:LEARNER_GPUS}") \
  fairbox train --up resume=true env=gsm8k env_config.prompt=code model="$MODEL_DIR" out="$OUT" steps="$STEPS" \
  prompts_per_step="$PROMPTS_PER_STEP" samples_per_prompt="$SAMPLES" concurrency="$CONCURRENCY" \
  limits.max_turns="$MAX_TURNS" limits.max_turn_tokens="$MAX_TURN_TOKENS" \
  limits.max_response_tokens="$MAX_RESPONSE_TOKENS" policy.dtype="$dtype" policy.lora_rank="$LORA_RANK" \
  update.lr="$LR" "${words[@]}" "$@"

if ((CHECKED_ROWS > 0)); then
  echo "== the first step's logprobs, computed again"
  head -n "$CHECKED_ROWS" "$OUT/rollouts/1.jsonl" >"$OUT/checked.jsonl"
  [[ -n $CHECKED_TOLERANCE ]] || CHECKED_TOLERANCE=$([[ $ENGINE == sglang && $N_GPUS != 0 ]] && echo 1 || echo 1e-4)
  fairbox check-dump dump="$OUT/checked.jsonl" model="$MODEL_DIR" tolerance="$CHECKED_TOLERANCE"
fi

echo "== done"
echo "figures of each step:   $OUT/metrics.jsonl"
echo "the trained model:      $OUT/model"
echo "what was played:        $PYTHON -m rollout.cli view $OUT/rollouts"
