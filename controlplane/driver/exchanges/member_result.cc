#include "controlplane/driver/exchanges/member_result.h"

namespace megascale::driver {

using megascale::agent::v1::MachineTest;
using megascale::agent::v1::TestResult;

std::string FailureOfPart(const MachineTest& test) {
  for (const TestResult& result : test.results()) {
    if (!result.failure().empty()) return result.failure();
  }
  return test.state() == MachineTest::STATE_FAILED ? test.evidence() : "";
}

std::string NoteOfPart(const MachineTest& test) {
  for (const TestResult& result : test.results()) {
    if (!result.note().empty()) return result.note();
  }
  return "";
}

bool GaveNoResult(const MachineTest& test) {
  return test.state() == MachineTest::STATE_FAILED && test.results().empty();
}

}  // namespace megascale::driver
