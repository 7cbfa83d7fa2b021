// Times of the passes that drafting chooses between, by their number of rows, before anything is served.
#pragma once

#include "engine/draft_feed.h"
#include "engine/step_costs.h"

namespace onebit {

/// Runs passes of all widths, of the target and of the drafter if there is one, on an empty session, whose slot is
/// cleared afterwards. Nothing is known where drafts have no token.
StepCosts measure_costs(Engine& engine, Session& session, const DraftFeed& feed);

}  // namespace onebit
