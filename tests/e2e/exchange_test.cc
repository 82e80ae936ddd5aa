// Real machines test each other before they work: where one of three has a slow or broken link, it
// is the one that gets no work. Each machine is a network namespace with an address of its own.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
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
constexpr int kFullDeadlineSeconds = 300;

class ExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(machines_.status().ok()) << machines_.status(); }

  void Start() {
    // Half of this rate is 2.5 times what the slow link carries, and a fraction of what others do.
    cluster_.SetDriverFlags({"--machine-tests", "quick", "--exchange-rate", "12.5"});
    cluster_.StartDriver();
    StartAgents();
  }
  void StartAgents() {
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
  // Waits until all machines have exchanged with all others at the same time.
  nlohmann::json WaitForRound(int seconds) const {
    nlohmann::json nodes;
    EXPECT_TRUE(WaitUntil(
        [&] {
          nodes = Nodes();
          size_t num_ended = 0;
          for (const nlohmann::json& node : nodes) num_ended += node.count("exchange_round");
          return num_ended == kNum;
        },
        seconds))
        << nodes.dump(2) << "\n"
        << cluster_.Megascale({"nodes"}).out;
    return nodes;
  }
  static void ExpectRoundOfAll(nlohmann::json nodes) {
    ASSERT_EQ(nodes.size(), kNum);
    for (nlohmann::json& node : nodes) {
      nlohmann::json& round = node["exchange_round"];
      EXPECT_EQ(round["node_ids"].size(), kNum - 1) << round;
      EXPECT_EQ(round.value("failure", "") + round.value("note", ""), "") << round;
      EXPECT_EQ(round.value("rate_min", 0.0), 6.25e6) << round;
      EXPECT_GT(round.value("bytes_per_second", 0.0), 6.25e6) << round;
      EXPECT_GT(round.value("latency_seconds", 0.0), 0) << round;
      EXPECT_NE(round.value("ended_at", ""), "") << round;
      EXPECT_EQ(node["exchanges"].size(), kNum - 1) << node;
      EXPECT_EQ(node.value("quarantine_evidence", ""), "") << node;
    }
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

TEST_F(ExchangeTest, MachinesInOrderExchangeAllToAllAndThenWork) {
  Start();
  ExpectRoundOfAll(WaitForRound(kDeadlineSeconds));
  const std::string table = cluster_.Megascale({"nodes"}).out;
  EXPECT_TRUE(absl::StrContains(table, "2 passed, at most ")) << table;
  EXPECT_TRUE(absl::StrContains(table, ", 3 at once ")) << table;
  ExpectTheOthersWork("no machine");
}

// A driver on TCP tests machines fully if nobody says otherwise.
TEST_F(ExchangeTest, MachinesOfADriverOnANetworkAreTestedFully) {
  cluster_.UseTls(injection::Machines::OwnAddress());
  cluster_.SetDriverFlags({"--machine-tests", "", "--exchange-rate", "12.5"});
  cluster_.StartDriver();
  StartAgents();
  nlohmann::json nodes = WaitForRound(kFullDeadlineSeconds);
  ExpectRoundOfAll(nodes);
  for (nlohmann::json& node : nodes) {
    nlohmann::json& test = node["machine_test"];
    EXPECT_EQ(test.value("kind", ""), "TEST_KIND_FULL") << test;
    EXPECT_EQ(test.value("state", ""), "STATE_PASSED") << test;
    std::map<std::string, nlohmann::json> parts;
    for (const nlohmann::json& result : test["results"]) parts[result.value("part", "")] = result;
    for (const char* part : {"memory", "arithmetic", "training", "loopback", "disk"}) {
      EXPECT_EQ(parts.count(part), 1) << part << " is not in " << test;
      EXPECT_EQ(parts[part].value("failure", "") + parts[part].value("note", ""), "") << test;
      EXPECT_GT(parts[part].value("seconds", 0.0), 0) << test;
    }
    for (const char* part : {"memory", "loopback", "disk"}) {
      EXPECT_GT(parts[part].value("bytes_per_second", 0.0), 0) << test;
    }
  }
  ExpectTheOthersWork("no machine");
  nlohmann::json evidence;
  ASSERT_TRUE(WaitUntil(
      [&] {
        std::ifstream file(cluster_.state_directory() + "/jobs/job/evidence.json");
        evidence = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
        return evidence.is_object();
      },
      kDeadlineSeconds));
  ASSERT_EQ(evidence["nodes"].size(), 2);
  for (nlohmann::json& node : evidence["nodes"]) {
    EXPECT_EQ(node["machine_test"].value("kind", ""), "TEST_KIND_FULL") << node;
    EXPECT_GT(node["worst_exchange"].value("bytes_per_second", 0.0), 0) << node;
    EXPECT_GT(node["exchange_round"].value("bytes_per_second", 0.0), 0) << node;
  }
}

}  // namespace
}  // namespace megascale::e2e
