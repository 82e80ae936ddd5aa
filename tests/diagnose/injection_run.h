// One injection into a real job of eight paced workers on four machines (machines.h), and what
// `megascale diagnose` says of it, asked again and again until the time is up.
#pragma once

#include <functional>
#include <string>

#include "tests/diagnose/injection.h"
#include "tests/diagnose/report.h"

namespace megascale::injection {

struct RunOptions {
  std::function<void(const std::string&)> say;  // called with each verdict
  bool keep_logs = false;
  std::string save;  // folder for the evidence of the last verdict; "": it is not saved
};

RunReport RunInjection(const Injection& injection, const RunOptions& options);

// Reads the output of `megascale diagnose -o json`; without a verdict, everything is empty.
Said ReadVerdict(const std::string& output);

}  // namespace megascale::injection
