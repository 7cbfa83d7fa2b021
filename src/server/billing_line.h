// Some clients begin their system prompt with a line for billing that differs from request to request
// ("x-anthropic-billing-header: ...; cch=1a2b3;"). It tells the model nothing and would make every prompt differ from
// the first words on, so that nothing of it could be reused: it is left out.
#pragma once

#include <string>

namespace onebit {

/// Removes such lines from the beginning of a system message.
void drop_billing_lines(std::string& system);

}  // namespace onebit
