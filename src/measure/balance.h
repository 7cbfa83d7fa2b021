// Channel balance: an input channel j may be multiplied by s_j where it is made and its column divided by s_j where it
// is read, without changing what the model computes. With s_j between the channel's size and its column's, rounding
// hurts all channels alike. Folded into the weights that make the input, it costs nothing at run time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace onebit {

/// Factors on a tensor's columns and rows; empty: none.
struct TensorFactors {
  std::vector<float> columns, rows;
};

/// One input and how large it is.
struct BalancedInput {
  Value x;
  std::vector<float> rms;               ///< [k] root mean square of each channel
  std::vector<float> column_norm;       ///< [k] root of the summed squares of its column over all matrices that read it
  std::vector<const Weight*> matrices;  ///< all of them
};

/// s = (column_norm / rms)^exponent with geometric mean 1, for inputs that come from a norm, a swiglu or an attention
/// and are read by `matrices` alone; other inputs are left as they are. Adds to `factors` by tensor name.
void balance_input(const Plan& plan, const BalancedInput& input, double exponent,
                   std::map<std::string, TensorFactors>& factors);

}  // namespace onebit
