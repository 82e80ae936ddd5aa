// Real machines test each other before they work: of three, one has a slow or broken link, and it
// is the one that gets no work. Each machine is a network namespace with an address of its own.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/diagnose/machines.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

constexpr int kNum = 3;
constexpr int kDeadlineSeconds = 120;

class ExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(machines_.status().ok()) << machines_.status(); }

  void Start() {
    // Half of this rate is 2.5 times what the slow link carries, and a fraction of what others do.
    cluster_.SetDriverFlags({"--machine-tests", "quick", "--exchange-rate", "12.5"});
    cluster_.StartDriver();
    for (int i = 0; i < kNum; ++i) {
      cluster_.RunAgentsUnder(machines_.Prefix(i));
      cluster_.SetAgentFlags({"--interface", machines_.Address(i)});
      cluster_.StartAgent(i, 2);
    }
  }

  nlohmann::json Nodes() const {
    const CommandResult shown = cluster_.Megascale({"nodes", "-o", "json"});
    nlohmann::json parsed = nlohmann::json::parse(shown.out, nullptr, /*allow_exceptions=*/false);
    return parsed.is_object() ? parsed["nodes"] : nlohmann::json::array();
  }
  // Waits until the tests of all machines are over: one is quarantined, the others have passed.
  nlohmann::json WaitForQuarantine() const {
    nlohmann::json nodes;
    EXPECT_TRUE(WaitUntil(
        [&] {
          nodes = Nodes();
          int num_quarantined = 0;
          int num_passed = 0;
          for (const nlohmann::json& node : nodes) {
            num_quarantined += node.value("quarantine_evidence", "").empty() ? 0 : 1;
            for (const nlohmann::json& exchange :
                 node.value("exchanges", nlohmann::json::array())) {
              const double rate = exchange.value("bytes_per_second", 0.0);
              num_passed += exchange.value("failure", "").empty() && rate > 6.25e6 ? 1 : 0;
            }
          }
          return num_quarantined > 0 && num_passed == 2;
        },
        kDeadlineSeconds))
        << nodes.dump(2) << "\n"
        << cluster_.Megascale({"nodes"}).out;
    return nodes;
  }
  // A job needs two machines.
  void ExpectTheOthersWork(const std::string& bad) const {
    cluster_.Submit("job", {"train.steps=10"});
    EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    const control::v1::Job job = cluster_.Status("job");
    EXPECT_EQ(job.ranks_size(), 4);
    for (const control::v1::RankView& rank : job.ranks()) {
      EXPECT_NE(rank.node_id(), bad);
    }
  }

  injection::Machines machines_{kNum};
  Cluster cluster_;
};

TEST_F(ExchangeTest, TheMachineWithASlowLinkIsQuarantinedAndTheOthersWork) {
  constexpr double kSlowMbit = 20;
  machines_.LimitLink(0, kSlowMbit);
  ASSERT_TRUE(machines_.status().ok()) << machines_.status();
  Start();
  const nlohmann::json nodes = WaitForQuarantine();
  const std::string evidence = nodes[0].value("quarantine_evidence", "");
  EXPECT_TRUE(absl::StrContains(evidence, "with n1: reached ")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "with n2: reached ")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "passed with n")) << evidence;
  for (const nlohmann::json& exchange : nodes[0]["exchanges"]) {
    EXPECT_GT(exchange.value("latency_seconds", 0.0), 0);
  }
  for (const int other : {1, 2}) {
    EXPECT_EQ(nodes[other].value("quarantine_evidence", ""), "") << "n" << other;
  }
  const std::string table = cluster_.Megascale({"nodes"}).out;
  EXPECT_TRUE(absl::StrContains(table, "1 passed, 1 failed, at most ")) << table;
  ExpectTheOthersWork("n0");
}

TEST_F(ExchangeTest, TheMachineWithABrokenLinkIsQuarantinedAndTheOthersWork) {
  machines_.CutLink(1);
  Start();
  const nlohmann::json nodes = WaitForQuarantine();
  const std::string evidence = nodes[1].value("quarantine_evidence", "");
  EXPECT_TRUE(absl::StrContains(evidence, "does not connect")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "with n0: ")) << evidence;
  EXPECT_TRUE(absl::StrContains(evidence, "with n2: ")) << evidence;
  for (const int other : {0, 2}) {
    EXPECT_EQ(nodes[other].value("quarantine_evidence", ""), "") << "n" << other;
  }
  ExpectTheOthersWork("n1");
}

}  // namespace
}  // namespace megascale::e2e
