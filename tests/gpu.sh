#!/bin/sh
# Every test that runs on a GPU, in one go of well under a minute. Usage: tests/gpu.sh BUILD [OUT]
#   BUILD  a build folder configured with -DONEBIT_CUDA=ON
#   OUT    where the logs go (default: BUILD)
# All ops against ref, sequences divided into batches, tiny models against Hugging Face, the engine, the demo pair's
# text against the CPU's; then memory and race checks of the kernels where compute-sanitizer is installed.
set -u
build=$(cd "$1" && pwd)
out=${2:-$build}
failed=0
run() { # NAME COMMAND...
  name=$1
  shift
  start=$(date +%s)
  if "$@" > "$out/gpu_$name.txt" 2>&1; then word=ok; else word=FAILED failed=1; fi
  echo "$word: $name, $(($(date +%s) - start)) s"
  grep -E "^(cuda: |not tested: )|texts equal|  FAILED  \]" "$out/gpu_$name.txt" | head -40
}
run op "$build/op_test" --gtest_brief=1 '--gtest_filter=Devices.*:*/cuda*'
run sequence "$build/sequence_test" --gtest_brief=1 '--gtest_filter=*cuda*'
run tiny "$build/tiny_golden_test" --gtest_brief=1 '--gtest_filter=*cuda*'
run split "$build/split_test" --gtest_brief=1
run engine "$build/engine_test" --gtest_brief=1
run demo "$build/demo_golden_test" '--gtest_filter=*EveryDevice*'
if command -v compute-sanitizer > /dev/null; then
  some='*/cuda_attention_8x2x256*:*/cuda_block_attention_open_6x2*:*/cuda_delta_net_real:*/cuda_select*:*/cuda_route_real'
  for tool in memcheck racecheck; do
    run $tool compute-sanitizer --tool $tool --error-exitcode 1 "$build/op_test" --gtest_brief=1 \
      "--gtest_filter=$some:*/cuda_matmul_q4_0_17x33*:*/cuda_experts_q4_0*"
  done
fi
exit $failed
