#!/bin/sh
# The GPU's figures in one go of about three minutes: models of random weights in real shapes. Usage: bench/gpu.sh BUILD OUT
#   BUILD  a build folder configured with -DONEBIT_CUDA=ON (and -DONEBIT_BENCH=ON for the table of single products)
#   OUT    folder of the results: one JSON document of `1bit bench` a line of the table, gpu_matmul.csv
set -u
bench="$1/1bit bench --device cuda"
out=$2
vocab=,vocab=151936
run() { # NAME FLAGS...
  name=$1
  shift
  # shellcheck disable=SC2086
  $bench "$@" --json > "$out/$name.json" 2> "$out/$name.err" || echo "FAILED: $name: $(tail -1 "$out/$name.err")"
}
run 27b -m shape:qwen3.8-27b$vocab -b 2048 --prompt 512,2048 --gen 64 --verify 8,16 --reps 5
run 27b-draft -m shape:qwen3.8-27b$vocab --dflash shape:draft-27b$vocab --draft-accept 6.7 --draft-adaptive off \
  --lookup off --prompt 0 --gen 64 --verify 0 --reps 5
run 27b-depth -m shape:qwen3.8-27b$vocab -b 2048 -c 40960 --depth 0,8192,32768 --prompt 0 --gen 32 --verify 8 --reps 2
run 30b-a3b -m shape:qwen3-30b-a3b -b 2048 --prompt 512,2048 --gen 64 --verify 8 --reps 5
run 0.6b -m shape:qwen3-0.6b -b 2048 --prompt 512,2048 --gen 64 --verify 8,16 --reps 5
if [ -x "$1/gpu_matmul_bench" ]; then "$1/gpu_matmul_bench" time "$out/gpu_matmul.csv" > "$out/gpu_matmul.txt"; fi
python3 - "$out" <<'PY'
import glob, json, os, sys
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.json"))):
    with open(path) as file:
        text = file.read()
    if not text:
        continue
    document = json.loads(text)
    print(os.path.basename(path)[:-5], "on", document["device_description"])
    for row in document["rows"]:
        speed = row["tokens_per_second"]
        print(f"  {row['test']:<14} {speed['median']:>10.1f} t/s  ({speed['min']:.1f} to {speed['max']:.1f})")
PY
