// The loss curve, drawn in characters. Pure functions.
//
//    5.54 ┤⡇
//         │⠱⡀
//    3.70 ┤ ⠈⠢⣀
//         │    ⠉⠒⠤⣀⡀
//    1.86 ┤        ⠈⠉⠉⠒⠒
//         └─────────────
//          1         800
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megascale::cli {

struct CurvePoint {
  int64_t step = 0;
  double value = 0;
};

struct CurveOptions {
  int width = 72;       // columns of the plot, without labels; >= 2
  int height = 12;      // rows of the plot; >= 2
  bool unicode = true;  // Braille dots and box lines; otherwise ASCII
  // A second curve in the same picture, drawn in circles; empty: there is none.
  std::vector<CurvePoint> second = {};
};

// Returns the lines from top to bottom. Points may be in any order. Steps that share a column are
// averaged, columns without a step are bridged, and values that are not finite are left out.
// Without points it returns one line that says so.
std::vector<std::string> DrawCurve(const std::vector<CurvePoint>& points,
                                   const CurveOptions& options);

}  // namespace megascale::cli
