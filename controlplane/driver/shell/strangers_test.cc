// Agents that say more than they may: slots, names and numbers of nodes are claims.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/testing/test_events.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/shell/testing/shell_test_base.h"
#include "controlplane/driver/storage/job_files.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
using ::testing::HasSubstr;

class Stranger : public AgentLink {
 public:
  explicit Stranger(AgentPeer peer) : peer_(std::move(peer)) {}
  void SendDesired(const agent::DesiredState& desired) override { last = desired; }
  void Close(const absl::Status& why) override { closed = why; }
  void Send(agent::AgentDown message) override { sent.push_back(std::move(message)); }
  AgentPeer peer() const override { return peer_; }
  agent::DesiredState last;
  std::vector<agent::AgentDown> sent;
  absl::Status closed;

 private:
  const AgentPeer peer_;
};

class StrangersTest : public ShellTestBase {
 protected:
  void Open(DriverShell::Options options = {}) {
    options.state_directory = absl::StrCat(::testing::TempDir(), "/strangers");
    options.files = &RealJobFiles();
    Begin(&disk_, std::move(options));
  }

  // Lets an agent connect, and returns why it may not join.
  absl::Status Join(const agent::Hello& hello, const AgentPeer& peer = {"thief", "10.0.0.7"}) {
    const auto link = std::make_shared<Stranger>(peer);
    bool joined = false;
    Round([&] { joined = shell_->OnHello(hello, link); });
    EXPECT_EQ(joined, link->closed.ok());
    links_.push_back(link);
    return link->closed;
  }

  void Submit(int ranks) {
    Round([&] {
      EXPECT_TRUE(shell_->Submit(Submitted("j", SpecOf(ranks, 1, 10)).job_submitted()).ok());
    });
  }

  std::vector<std::shared_ptr<Stranger>> links_;
};

TEST_F(StrangersTest, AnAgentThatOffersMoreSlotsThanMayBeIsRefused) {
  Open();
  const absl::Status refused = Join(HelloOf("n0", "a", std::numeric_limits<int32_t>::max()));
  EXPECT_EQ(refused,
            absl::InvalidArgumentError(
                "node n0: offers 2147483647 slots, and the driver takes at most 992 of an "
                "agent; give the agent fewer --slots, or the driver a higher --slots-max"));
  EXPECT_EQ(FindNode(shell_->state(), "n0"), nullptr);
  EXPECT_TRUE(Join(HelloOf("n0", "a", 992)).ok());
}

TEST_F(StrangersTest, TheOperatorSetsHowManySlotsAnAgentMayOffer) {
  DriverShell::Options options;
  options.slots_max = 8;
  Open(std::move(options));
  EXPECT_TRUE(Join(HelloOf("n0", "a", 8)).ok());
  EXPECT_FALSE(Join(HelloOf("n1", "a", 9)).ok());
  EXPECT_FALSE(Join(HelloOf("n0", "b", 9)).ok()) << "also not by an agent that was started again";
}

TEST_F(StrangersTest, ACertificateMakesABoundedNumberOfNodes) {
  DriverShell::Options options;
  options.new_nodes_per_hour = 3;
  Open(std::move(options));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Join(HelloOf(absl::StrCat("n", i), "a", 1)).ok());
  for (int i = 3; i < 100; ++i) {
    const absl::Status refused = Join(HelloOf(absl::StrCat("n", i), "a", 1));
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(shell_->state().nodes_size(), 3);
  EXPECT_TRUE(Join(HelloOf("m0", "a", 1), {"honest", "10.0.0.8"}).ok());
  links_.clear();
  EXPECT_TRUE(Join(HelloOf("n0", "a", 1)).ok()) << "it is not new";
}

TEST_F(StrangersTest, OnlyNodesThatAnOperatorNamedGetRanks) {
  DriverShell::Options options;
  options.names_nodes = true;
  Open(std::move(options));
  ASSERT_TRUE(Join(HelloOf("n0", "a", 2), {"agent-0", "10.0.0.7"}).ok());
  Submit(2);
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED);
  EXPECT_THAT(job().message(), HasSubstr("n0 waits to be named"));
  const auto view = shell_->view()->Node("n0");
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->unnamed());
  EXPECT_EQ(view->certificate(), "agent-0");
  EXPECT_EQ(view->address(), "10.0.0.7");

  shell_->OnGone("n0", links_.back().get());
  ASSERT_TRUE(Join(HelloOf("n0", "b", 2), {"agent-0", "10.0.0.7"}).ok());
  EXPECT_EQ(job().stage(), v1::STAGE_QUEUED) << "an agent that starts again stays unnamed";
  auto stolen = HelloOf("n0", "c", 2);
  stolen.set_key("another");
  EXPECT_EQ(Join(stolen, {"thief", "10.0.0.9"}).code(), absl::StatusCode::kPermissionDenied)
      << "what the operator saw must be what gets the name";
  Round([&] { EXPECT_TRUE(shell_->Uncordon("n0").ok()); });
  EXPECT_EQ(job().stage(), v1::STAGE_PREFLIGHT);
  EXPECT_FALSE(shell_->view()->Node("n0")->unnamed());

  DriverShell::Options again;
  again.names_nodes = true;
  Open(std::move(again));
  ASSERT_TRUE(Join(HelloOf("n0", "b", 2), {"agent-0", "10.0.0.7"}).ok());
  EXPECT_TRUE(TakesRanks(*FindNode(shell_->state(), "n0"))) << "the name is in the log";
  ASSERT_TRUE(Join(HelloOf("n1", "a", 2), {"agent-0", "10.0.0.7"}).ok());
  EXPECT_FALSE(TakesRanks(*FindNode(shell_->state(), "n1")));
}

// --- a new driver ----------------------------------------------------------------------------

class FreshDriverTest : public ShellTestBase {
 protected:
  void SetUp() override {
    DriverShell::Options options;
    options.state_directory = "/state";
    options.files = &disk_;
    Begin(&disk_, std::move(options));
  }
  const std::shared_ptr<Stranger> link_ = std::make_shared<Stranger>(AgentPeer());
};

TEST_F(FreshDriverTest, AFreshDriverWhoseClockIsBehindGoesAboveTheEpochOfAnAgent) {
  agent::Hello hello = HelloOf("n0", "a", 1);
  const int64_t known = shell_->state().epoch() + 1'000'000'000;
  hello.mutable_known()->set_epoch(known);
  Round([&] { EXPECT_TRUE(shell_->OnHello(hello, link_)); });
  EXPECT_GT(link_->last.epoch(), known);
  EXPECT_FALSE(FindNode(shell_->state(), "n0")->hello().has_known()) << "not kept in the log";
}

TEST_F(FreshDriverTest, AnAgentIsAskedOnceForTheListOfFilesWhichIsKeptForOthers) {
  Round([&] { EXPECT_TRUE(shell_->Submit(Submitted("j", SpecOf(1, 1, 9)).job_submitted()).ok()); });
  agent::Hello hello = HelloOf("n0", "a", 1);
  hello.set_data_digests(true);
  Round([&] { shell_->OnHello(hello, link_); });
  agent::ActualState report;
  report.set_incarnation("a");
  agent::ActualJob* actual = report.add_jobs();
  actual->set_job_id("j");
  actual->set_attempt(1);
  actual->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  agent::DataFiles list;
  list.set_job_id("j");
  for (const char* sha256 : {"a", "b"}) list.add_file_sha256(sha256);
  auto* data = actual->mutable_preflight()->mutable_data();
  *data->mutable_file_sha256() = list.file_sha256();
  *data = job::DigestOf(*data);
  Round([&] { shell_->OnReport("n0", report); });
  PassInSilence(absl::Seconds(1));
  ASSERT_EQ(link_->sent.size(), 1u);
  EXPECT_EQ(link_->sent[0].fetch_data_files().job_id(), "j");
  Round([&] { shell_->OnDataFiles(list); });
  agent::FetchDataFiles fetch;
  fetch.set_request_id("7");
  fetch.set_job_id("j");
  Round([&] { shell_->OnFetchDataFiles(fetch, link_.get()); });
  ASSERT_EQ(link_->sent.size(), 2u) << "it is asked once";
  EXPECT_EQ(link_->sent[1].data_files().request_id(), "7");
  EXPECT_EQ(link_->sent[1].data_files().file_sha256_size(), 2);
}

}  // namespace
}  // namespace megascale::driver
