// Draws the ranks of a job as a grid of stages and replicas, each in a colour that shows how much
// it costs or waits. A pure function. Source: MegaScale (NSDI '24), section 5.2, and the OSDI '25
// paper named in what_if.h, figure 14.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace megascale::diagnose {

struct HeatMapCell {
  int row = 0;        // stage
  int column = 0;     // replica, and its tensor-parallel ranks side by side
  std::string label;  // short: "rank 3"
  std::string value;  // short: "1.97", "waits"
  std::string note;   // shown where the pointer is
  double heat = 0;    // 0: white, 1: red
};

// Returns an SVG with a cell for each rank, `title` above it, and rows named "stage 0" and so on.
std::string HeatMapSvg(const std::string& title, absl::Span<const HeatMapCell> cells);

}  // namespace megascale::diagnose
