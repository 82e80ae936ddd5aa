// As broken_test.cc, for what agents claim: their slots, their names, their ages and
// their losses.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/log.h"
#include "tests/sim/finds.h"

namespace megascale::sim {
namespace {

class BrokenAgentTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { base::InitLog("broken agents", base::LogLevel::kError); }
};

TEST_F(BrokenAgentTest, DriverThatTakesAnyNumberOfSlotsIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.options = [](driver::DriverShell::Options* options) {
      options->slots_max = std::numeric_limits<int>::max();
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("ClaimsAreBounded", tamper));
}

TEST_F(BrokenAgentTest, DriverThatTakesAnyNumberOfNewNodesIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.options = [](driver::DriverShell::Options* options) {
      options->new_nodes_per_hour = std::numeric_limits<int64_t>::max();
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("ClaimsAreBounded", tamper));
}

TEST_F(BrokenAgentTest, DriverThatForgetsToWhomNodeIdsBelongIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.state = [](DriverState* state) {
      for (auto& node : *state->mutable_nodes()) node.clear_certificate();
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("NamesStay", tamper));
}

// As an agent that is busy again and again, and gives no age.
TEST_F(BrokenAgentTest, AgentThatRepeatsAnOldReportAsANewOneIsFound) {
  const auto tamper = [] {
    struct Sent {
      agent::ActualState report;
      int num_times = 0;
    };
    constexpr int kTimes = 20;
    const auto sent = std::make_shared<std::map<std::string, Sent>>();
    Tampering tampering;
    tampering.report = [sent](agent::ActualState* report) {
      Sent& before = (*sent)[report->incarnation()];
      if (before.num_times++ % kTimes == 0) before.report = *report;
      *report = before.report;
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("AgesAreTrue", tamper));
}

TEST_F(BrokenAgentTest, AgentThatLeavesOutALossOnHeldOutTextIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.report = [](agent::ActualState* report) {
      for (auto& job : *report->mutable_jobs()) {
        for (auto& record : *job.mutable_steps()) record.clear_held_out_loss();
      }
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("EvaluationsAreWhole", tamper));
}

TEST_F(BrokenAgentTest, AgentThatReportsTheLossOfAnotherEvaluationIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.report = [](agent::ActualState* report) {
      for (auto& job : *report->mutable_jobs()) {
        for (auto& record : *job.mutable_steps()) {
          if (record.has_held_out_loss()) record.set_held_out_loss(record.held_out_loss() + 0.001);
        }
      }
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("EvaluationsAreWhole", tamper));
}

}  // namespace
}  // namespace megascale::sim
