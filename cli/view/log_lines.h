// The lines of several processes' logs in the order of their times, each with the name of the
// process that wrote it. Times are those of the machines' own clocks. Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"

namespace megascale::cli {

class LogLines {
 public:
  // Adds the next piece of a log.
  void Add(const control::v1::StreamLogsResponse& piece);
  size_t size_bytes() const { return size_bytes_; }
  // Returns the lines that were added since the last call: "[rank 3] …" or "[host n0] …". Lines of
  // a log keep their order. A line without a time stands behind the line before it.
  std::string Take();

 private:
  struct Line {
    std::string time;  // not before the times of earlier lines of the same log; "": no line has one
    std::string text;
  };

  std::vector<Line> lines_;                                    // in the order in which they came
  std::map<std::pair<int, std::string>, std::string> newest_;  // time of each log, by rank and node
  size_t size_bytes_ = 0;
};

}  // namespace megascale::cli
