// By how much a model overfits, in words. A pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/view/loss_curve.h"

namespace megascale::cli {

// Says by how much the newest loss on held-out text is above that on training text, and whether it
// still falls or has risen since its lowest value. `unit`: of what a loss is the mean, "token" or
// "byte". Both curves ascend by step. "": there was no evaluation.
std::string OverfittingText(const std::vector<CurvePoint>& training,
                            const std::vector<CurvePoint>& held_out, absl::string_view unit);

}  // namespace megascale::cli
