// The first error that a process wrote into its log. Later errors are often its consequences.
// Source: Jiang et al., NSDI '24 (MegaScale), section 5: the first error names the cause. Threads:
// plain data; one at a time.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace megascale::cli {

class FirstError {
 public:
  // Adds the next whole lines of the log.
  void Add(absl::string_view lines);

  // Returns the first line that reports an error, printable and cut to 300 bytes; "": there is none
  // yet. A line of our own logs reports an error if its level is E. A line of other text, which
  // libraries write, reports an error if it has "error", "fatal", "assert", "abort", "terminate
  // called", or "signal".
  const std::string& line() const { return line_; }

 private:
  std::string line_;
};

}  // namespace megascale::cli
