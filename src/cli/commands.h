// The commands: each takes the options, prints to stdout, and returns the exit code; failures are thrown as Error.
#pragma once

#include "cli/options.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "convert/tensor_stream.h"
#include "measure/loaded_model.h"

namespace onebit {

int cmd_serve(Options options);
int cmd_run(Options options);
int cmd_chat(Options options);
int cmd_plan(Options options);
int cmd_bench(Options options);
int cmd_eval(const Options& options);
int cmd_imatrix(const Options& options);
int cmd_inspect(const Options& options);
int cmd_tokenize(const Options& options);
int cmd_detokenize(const Options& options);
int cmd_quantize(const Options& options);
int cmd_convert(const Options& options);
int cmd_version(const Options& options);
int cmd_help(const Options& options);

/// The device and memory flags of commands that run a model over a text.
MeasureOptions measure_options(const Options& options);

/// How quantize and convert report: a bar, and an end when a signal came. Both objects must outlive the callback.
ProgressCallback show_stream(Progress& progress, const StopSignals& signals);

}  // namespace onebit
