// What one answer knows about its drafts: the tokens under test and what earlier rounds taught.
#pragma once

#include <vector>

#include "engine/acceptance.h"
#include "engine/lookup.h"

namespace onebit {

enum class DraftSource : uint8_t { none, model, lookup };

struct Drafting {
  Drafting(const RateWeights& model_prior, const RateWeights& lookup_prior)
      : model(model_prior), lookup(lookup_prior) {}

  std::vector<int32_t> tokens;  // under test in this round
  DraftSource source = DraftSource::none;
  std::vector<float> untested;  // the drafter's confidence of tokens that it drafted behind those
  double n_extra = 0;           // what the round costs more than a plain step, in plain steps
  Acceptance model, lookup;
  DraftAccount account;
  Lookup index;
  int64_t lookup_length = 2;  // most tokens to look up: doubled when all were right, halved when one was wrong
};

}  // namespace onebit
