// Many injections, several at a time: each in a process of its own, because a process enters one
// network namespace for ever. Blocking.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/diagnose/injection.h"
#include "tests/diagnose/injection_run.h"
#include "tests/diagnose/report.h"

namespace megascale::injection {

struct SideBySide {
  // Runs at a time. The workers of a run mostly wait: they keep half a core busy.
  int jobs = 1;
  RunOptions run;
  std::function<void(const RunReport&)> on_report;  // as soon as a run has ended
};

// Makes the runs and returns their reports, in the order of the injections. A run that must be
// alone (LoadsMachine) is made after those that need not be. Requires: with more than one job, this
// process has one thread.
std::vector<RunReport> RunInjections(const std::vector<Injection>& injections,
                                     const SideBySide& options);

// A report as text, to send it to another process. Reading garbage gives a report with a problem.
std::string WriteReport(const RunReport& report);
RunReport ReadReport(const Injection& injection, const std::string& text);

}  // namespace megascale::injection
