// One answer, generated on the calling thread: request in, text shown as it comes, everything about it out.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"
#include "cli/signals.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"
#include "engine/text_stream.h"

namespace onebit {

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::error;
  Statistics statistics;
};

/// Shows text as it is generated; may be empty.
using ShowText = std::function<void(std::string_view)>;

/// Runs `request` to its end, to a stop string of `text`, or until a signal asks to stop (FinishReason::cancelled).
/// Shows how far the prompt is read on a terminal. Throws Error(runtime) when the engine failed.
Answer generate(Scheduler& scheduler, const TextModel& model, Request request, const TextStreamOptions& text,
                const ShowText& show, const StopSignals& signals);

}  // namespace onebit
