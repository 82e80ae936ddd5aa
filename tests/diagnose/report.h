// What came of injections: a line and a table for people, and the rules that many runs must keep.
// Pure.
#pragma once

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

// Returns a line for people.
std::string Describe(const RunReport& report);
// Returns a table by fault.
std::string Table(const std::vector<RunReport>& reports);

// Returns three lines: how many runs whose victim must be named are right, how many that the job
// survives, so that nobody need be named, and how many without a victim.
std::string Counts(const std::vector<RunReport>& reports);

// Returns a line for each rule that the runs break. Rank and cause are right in 95 % of the runs
// whose victim must be named; a run without a verdict counts as wrong. Nobody but the victim is
// named in any other run, nor anybody before a fault.
std::vector<std::string> BrokenRules(const std::vector<RunReport>& reports);

}  // namespace megascale::injection
