// The trunks of the architectures, one file each.
#pragma once

#include "model/model.h"

namespace onebit {

Value qwen3_trunk(Plan& plan, Model& model, const Taps* taps);   // qwen3.cpp: qwen3, qwen3moe
Value llama_trunk(Plan& plan, Model& model, const Taps* taps);   // llama.cpp: llama
Value qwen35_trunk(Plan& plan, Model& model, const Taps* taps);  // qwen35.cpp: qwen35, qwen35moe, qwen3next

}  // namespace onebit
