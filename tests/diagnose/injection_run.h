// One injection into a real job of eight paced workers on four machines (machines.h), and what
// `megascale diagnose` says of it, asked again and again until the time is up.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/diagnose/injection.h"

namespace megascale::injection {

struct RunReport {
  Injection injection;
  std::string node;     // the victim's
  std::string problem;  // why there is no verdict; "": there is
  bool is_victim_right = false;
  bool is_right = false;
  absl::Duration right_after = absl::InfiniteDuration();  // from the strike
  std::string said;         // the summary of the right verdict, or the last one
  std::string wrong;        // the first summary that names another; "": there is none
  std::string calm;         // what was named before the strike; "": nothing
  double step_seconds = 0;  // before the strike
};

struct RunOptions {
  std::function<void(const std::string&)> say;  // called with each verdict
  bool keep_logs = false;
  std::string save;  // folder for the evidence of the last verdict; "": it is not saved
};

RunReport RunInjection(const Injection& injection, const RunOptions& options);

// Reads the output of `megascale diagnose -o json`; without a verdict, everything is empty.
Said ReadVerdict(const std::string& output);

// Returns a line for people.
std::string Describe(const RunReport& report);
// Returns a table by fault.
std::string Table(const std::vector<RunReport>& reports);

}  // namespace megascale::injection
