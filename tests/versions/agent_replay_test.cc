// A driver of the release that was recorded talks to agents of today: they must take every message,
// do what it wants and report what the agents of that release did.
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/service/driver_stream.h"
#include "runtime/base/clock.h"
#include "tests/e2e/cluster.h"
#include "tests/versions/conversation.h"
#include "tests/versions/played_driver.h"
#include "tests/versions/played_machine.h"
#include "tests/versions/unknown.h"

namespace megascale::versions {
namespace {

using agent::DriverStream;
using agent::v1::ActualState;
using agent::v1::AgentDown;

constexpr char kRecording[] = "tests/versions/data/previous.gz";
constexpr absl::Duration kPatience = absl::Seconds(30);

// What a recorded message becomes on the wire, in order.
using Variants = std::function<std::vector<AgentDown>(const AgentDown&)>;

// What an agent did in the whole conversation.
struct Deeds {
  int num_starts = 0;
  int num_kills = 0;
  int num_reports = 0;
  bool operator==(const Deeds&) const = default;
};

class AgentReplayTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    const auto recorded = ReadConversation(e2e::Runfile(kRecording));
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    conversation_ = new v1::Conversation(*recorded);
  }
  static void TearDownTestSuite() { delete conversation_; }

  void SetUp() override {
    char name[] = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    address_ = *client::ParseAddress("unix:" + directory_ + "/s");
  }
  void TearDown() override {
    stream_.reset();
    driver_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Plays what the driver said to the agent of the node GetParam(). Stops at the first report that
  // differs from the recorded one.
  Deeds Play(const Variants& variants) {
    deeds_ = {};
    for (int i = 0; i < conversation_->entries_size() && !HasFailure(); ++i) {
      const v1::Entry& entry = conversation_->entries(i);
      if (entry.node_id() != GetParam()) continue;
      SCOPED_TRACE(absl::StrCat("entry ", i));
      if (entry.up().has_hello()) {
        Begin(entry.up().hello());
      } else if (entry.has_down()) {
        Pass(entry.down(), variants);
      } else if (entry.up().has_actual()) {
        Compare(entry.up().actual());
      } else if (entry.closed()) {
        AddDeeds();
        stream_.reset();
      }
    }
    AddDeeds();
    return deeds_;
  }

 private:
  void Begin(const agent::v1::Hello& hello) {
    stream_.reset();
    driver_.reset();
    driver_ = std::make_unique<PlayedDriver>(address_.text);
    agent::DriverStreamOptions options;
    options.address = address_;
    options.hello = hello;
    auto stream = DriverStream::Create(options);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    stream_->Maintain(base::RealClock().Monotonic());
    ASSERT_TRUE(driver_->AwaitHello());
    machine_ = std::make_unique<PlayedMachine>(hello.node_id(), hello.incarnation());
    waiting_.clear();
  }

  // Sends a message through the real service. Desired states wait until a report knows them.
  void Pass(const AgentDown& down, const Variants& variants) {
    for (const AgentDown& message : variants ? variants(down) : std::vector<AgentDown>{down}) {
      driver_->Send(message);
      const AgentDown received = Receive();
      ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(received, message));
      if (received.has_desired()) waiting_.push_back(received.desired());
    }
  }
  AgentDown Receive() {
    const absl::Duration end = base::RealClock().Monotonic() + kPatience;
    for (;;) {
      const DriverStream::Events events = stream_->Take();
      EXPECT_TRUE(events.ended.ok()) << events.ended;
      for (const AgentDown& message : events.messages) received_.push_back(message);
      if (!received_.empty()) {
        AgentDown first = received_.front();
        received_.pop_front();
        return first;
      }
      if (base::RealClock().Monotonic() > end) return {};
      pollfd entry = {stream_->events_fd(), POLLIN, 0};
      ::poll(&entry, 1, 100);
    }
  }

  void Compare(const ActualState& recorded) {
    while (!waiting_.empty() && waiting_.front().version() <= recorded.known_version()) {
      machine_->Take(waiting_.front());
      waiting_.pop_front();
    }
    stream_->SendActual(machine_->Follow(recorded));
    ++deeds_.num_reports;
    EXPECT_EQ(ActualText(driver_->AwaitReport()), ActualText(recorded));
  }

  void AddDeeds() {
    if (machine_ == nullptr) return;
    deeds_.num_starts += machine_->num_starts();
    deeds_.num_kills += machine_->num_kills();
    machine_.reset();
  }

  static v1::Conversation* conversation_;
  std::string directory_;
  client::Address address_;
  std::unique_ptr<PlayedDriver> driver_;
  std::unique_ptr<DriverStream> stream_;
  std::unique_ptr<PlayedMachine> machine_;
  std::deque<AgentDown> received_;
  std::deque<agent::v1::DesiredState> waiting_;
  Deeds deeds_;
};
v1::Conversation* AgentReplayTest::conversation_ = nullptr;

TEST_P(AgentReplayTest, TheDriverOfTheReleaseGetsTheSameReports) {
  const Deeds deeds = Play({});
  EXPECT_GT(deeds.num_starts, 6);
  EXPECT_GT(deeds.num_reports, 50);
}

TEST_P(AgentReplayTest, FieldsThatTheAgentDoesNotKnowChangeNothing) {
  const Deeds deeds = Play({});
  EXPECT_EQ(Play([](const AgentDown& down) {
              AgentDown newer = down;
              AddUnknownFields(&newer);
              return std::vector<AgentDown>{newer};
            }),
            deeds);
}

// Each message comes first in every form that a newer driver might give it. The true one follows,
// so nothing may be started or ended that the recorded driver did not want.
TEST_P(AgentReplayTest, ValuesAndMessagesThatTheAgentDoesNotKnowStartAndEndNothing) {
  const Deeds deeds = Play({});
  int num_forms = 0;
  EXPECT_EQ(Play([&](const AgentDown& down) {
              std::vector<AgentDown> forms;
              AgentDown unknown;  // a command that only a newer driver gives
              AddUnknownFields(&unknown);
              forms.push_back(unknown);
              ForEachUnknownValue(down, [&](const google::protobuf::Message& form) {
                forms.emplace_back().CopyFrom(form);
              });
              num_forms += static_cast<int>(forms.size());
              forms.push_back(down);
              return forms;
            }),
            deeds);
  EXPECT_GT(num_forms, 100);
}

INSTANTIATE_TEST_SUITE_P(Nodes, AgentReplayTest, ::testing::Values("n0", "n1"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace megascale::versions
