// What runtime/minder found, in words, in JSON, and as the report to the driver.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "runtime/minder/examine.h"

namespace megascale::cli {

struct Examined {
  std::string subject;  // "job demo", or the file
  minder::Examination examination;
  double now = 0;      // end of the series, on the recording's clock
  std::string action;  // what the driver did; empty: it was not told
};

// Returns lines for people: the verdict, its numbers, its two curves, what could not be compared.
std::string ExaminedText(const Examined& examined);
// Returns one JSON object; docs/minder.md lists its fields.
std::string ExaminedJson(const Examined& examined);

// Returns the report of the verdict to the driver. Requires: there is a verdict.
control::v1::ReportSuspectRequest ReportOf(const Examined& examined, const control::v1::Job& job);

}  // namespace megascale::cli
