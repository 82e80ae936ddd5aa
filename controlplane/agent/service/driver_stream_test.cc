#include "controlplane/agent/service/driver_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/socket/testing/test_user.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

absl::Duration Now() { return base::RealClock().Monotonic(); }

// Runs a service at an address. Declared after the service, so that it ends first.
class Serving {
 public:
  Serving(v1::AgentService::Service* service, const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
  }
  ~Serving() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  std::unique_ptr<grpc::Server> server_;
};

// Answers a hello, and notes the store requests of the present stream and the first report.
class TestDriver : public v1::AgentService::Service {
 public:
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
    v1::AgentUp up;
    if (!stream->Read(&up)) return grpc::Status::OK;
    known_epoch_ = up.hello().known().epoch();
    v1::AgentDown down;
    down.mutable_desired();
    stream->Write(down);
    while (stream->Read(&up)) {
      absl::MutexLock lock(&mutex_);
      for (const auto& request : up.store().requests()) received_.push_back(request.request_id());
      if (up.has_actual() && !first_report_.has_value()) first_report_ = up.actual();
    }
    return grpc::Status::OK;
  }

  bool AwaitReceived(const std::vector<std::string>& ids) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return received_.size() >= ids.size(); };
    mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
    return std::exchange(received_, {}) == ids;
  }

  int64_t known_epoch() const { return known_epoch_; }

  std::optional<v1::ActualState> AwaitFirstReport() {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return first_report_.has_value(); };
    mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
    return first_report_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> received_;
  std::optional<v1::ActualState> first_report_;
  std::atomic<int64_t> known_epoch_ = -1;  // of the newest hello
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  return address;
}

// A relay between a stream and its driver that can end a connection as a killed process does,
// without notice. Takes one connection at a time.
class Relay {
 public:
  Relay(std::string listen_path, const std::string& driver_path)
      : listen_path_(std::move(listen_path)), driver_(AddressOf(driver_path)) {
    Listen();
    EXPECT_EQ(::pipe(wake_.data()), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    Command('e');
    thread_.join();
    for (const int fd : wake_) ::close(fd);
  }

  // Listens again a little later.
  void Cut() { Command('c'); }

 private:
  void Command(char command) { EXPECT_EQ(::write(wake_[1], &command, 1), 1); }

  void Listen() {
    ::unlink(listen_path_.c_str());
    const sockaddr_un address = AddressOf(listen_path_);
    listener_ = base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
  }

  void Accept() {
    client_ = base::UniqueFd(::accept(listener_.get(), nullptr, nullptr));
    server_ = base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        ::connect(server_.get(), reinterpret_cast<const sockaddr*>(&driver_), sizeof(driver_)), 0);
  }

  // Passes bytes on; returns false at the end of the stream.
  bool Pass(const base::UniqueFd& from, const base::UniqueFd& to) {
    std::array<char, 4096> buffer;
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    return got > 0 &&
           ::send(to.get(), buffer.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }

  void Run() {
    for (;;) {
      std::array<pollfd, 4> entries = {{{wake_[0], POLLIN, 0},
                                        {client_.get(), POLLIN, 0},
                                        {server_.get(), POLLIN, 0},
                                        {client_.valid() ? -1 : listener_.get(), POLLIN, 0}}};
      ::poll(entries.data(), entries.size(), -1);
      char command = 0;
      if (entries[0].revents != 0 && ::read(wake_[0], &command, 1) == 1 && command == 'e') return;
      const bool ok = command == 0 && (entries[1].revents == 0 || Pass(client_, server_)) &&
                      (entries[2].revents == 0 || Pass(server_, client_));
      if (!ok) {
        listener_.reset();
        client_.reset();
        server_.reset();
        absl::SleepFor(absl::Milliseconds(30));
        Listen();
      } else if (entries[3].revents != 0) {
        Accept();
      }
    }
  }

  const std::string listen_path_;
  base::UniqueFd listener_;
  const sockaddr_un driver_;
  std::array<int, 2> wake_ = {-1, -1};
  base::UniqueFd client_, server_;
  std::thread thread_;
};

class DriverStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/tmp/ms-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Waits as the agent's loop does, but not beyond `end`.
  static void Wait(DriverStream* stream, absl::Duration end) {
    pollfd entry = {stream->events_fd(), POLLIN, 0};
    ::poll(&entry, 1, base::PollMilliseconds(std::min(stream->NextWake(), end) - Now()));
  }

  DriverStreamOptions OptionsFor(absl::string_view address) const {
    DriverStreamOptions options;
    options.address = *client::ParseAddress(std::string(address));
    options.hello.set_node_id("n0");
    return options;
  }

  // Maintains the stream as the agent's loop does, until it has opened.
  static bool AwaitOpened(DriverStream* stream) {
    const absl::Duration end = Now() + kDeadline;
    while (Now() < end) {
      stream->Maintain(Now());
      if (stream->Take().opened) return true;
      Wait(stream, end);
    }
    return false;
  }

  std::string directory_;
};

// A killed driver closes its socket without notice, and the next stream opens at once. Everything
// that is sent on it must arrive, without later messages that push it. The bug behind this test was
// a race that needed a busy machine.
TEST_F(DriverStreamTest, EverythingIsSentAfterTheDriverWasKilled) {
  TestDriver driver;
  const Serving serving(&driver, absl::StrCat("unix:", directory_, "/d.sock"));
  Relay relay(directory_ + "/r.sock", directory_ + "/d.sock");
  const auto stream =
      DriverStream::Create(OptionsFor(absl::StrCat("unix:", directory_, "/r.sock")));
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(AwaitOpened(stream->get())) << "round " << round;
    std::vector<std::string> ids;
    for (int i = 0; i < 3; ++i) {
      ids.push_back(absl::StrCat(round, "/", i));
      v1::AgentUp message;
      message.mutable_store()->add_requests()->set_request_id(ids.back());
      (*stream)->SendActual({});
      (*stream)->Send(std::move(message));
    }
    ASSERT_TRUE(driver.AwaitReceived(ids)) << "round " << round;
    // Longer than the first backoff, so that the next stream opens at once, while the channel may
    // still believe that its connection works.
    absl::SleepFor(absl::Milliseconds(120));
    relay.Cut();
  }
}

// A driver whose epoch is older than the one that the agent serves must learn that at once.
TEST_F(DriverStreamTest, EachStreamBeginsWithTheEpochThatTheAgentServes) {
  TestDriver driver;
  const Serving serving(&driver, absl::StrCat("unix:", directory_, "/d.sock"));
  Relay relay(directory_ + "/r.sock", directory_ + "/d.sock");
  const auto stream =
      DriverStream::Create(OptionsFor(absl::StrCat("unix:", directory_, "/r.sock")));
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE(AwaitOpened(stream->get()));
  EXPECT_EQ(driver.known_epoch(), 0);
  v1::KnownState known;
  known.set_epoch(7);
  (*stream)->SetKnown(known);
  relay.Cut();
  ASSERT_TRUE(AwaitOpened(stream->get()));
  EXPECT_EQ(driver.known_epoch(), 7);
}

// A slow link takes fewer reports than the agent makes, and not every report has the text.
TEST_F(DriverStreamTest, WhatAStalledRankDidLastIsSentAlthoughItsReportWasReplaced) {
  TestDriver driver;
  const Serving serving(&driver, absl::StrCat("unix:", directory_, "/d.sock"));
  const auto stream =
      DriverStream::Create(OptionsFor(absl::StrCat("unix:", directory_, "/d.sock")));
  ASSERT_TRUE(stream.ok()) << stream.status();
  v1::ActualState report;
  v1::ActualRank* rank = report.add_jobs()->add_ranks();
  rank->set_state(v1::ActualRank::STATE_RUNNING);
  rank->mutable_status()->set_progress_age_seconds(9);
  rank->mutable_status()->set_recent("in F.c0.m1");
  (*stream)->SendActual(report);
  rank->mutable_status()->clear_recent();
  for (const int64_t version : {5, 6}) {
    report.set_applied_version(version);
    (*stream)->SendActual(report);
  }
  ASSERT_TRUE(AwaitOpened(stream->get()));
  const std::optional<v1::ActualState> sent = driver.AwaitFirstReport();
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->applied_version(), 6) << "the newest report";
  EXPECT_EQ(sent->jobs(0).ranks(0).status().recent(), "in F.c0.m1");
}

// Ends each stream as soon as it has said hello.
class EndingDriver : public v1::AgentService::Service {
 public:
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
    v1::AgentUp up;
    stream->Read(&up);
    ++num_streams_;
    return grpc::Status::OK;
  }
  int num_streams() const { return num_streams_; }

 private:
  std::atomic<int> num_streams_ = 0;
};

// Takes the first stream and ends it, as a driver does that stops; then speaks another version for
// some streams.
class UpgradedDriver : public v1::AgentService::Service {
 public:
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
    v1::AgentUp up;
    stream->Read(&up);
    const int index = num_streams_++;
    if (index == 1 || index == 2) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "node n0: speaks version 5"};
    }
    v1::AgentDown down;
    down.mutable_desired();
    stream->Write(down);
    while (index > 2 && stream->Read(&up)) {
    }
    return grpc::Status::OK;
  }
  int num_streams() const { return num_streams_; }

 private:
  std::atomic<int> num_streams_ = 0;
};

TEST_F(DriverStreamTest, ADriverOfAnotherVersionEndsNoAgentThatHasWork) {
  UpgradedDriver driver;
  const Serving serving(&driver, absl::StrCat("unix:", directory_, "/d.sock"));
  const auto stream =
      DriverStream::Create(OptionsFor(absl::StrCat("unix:", directory_, "/d.sock")));
  ASSERT_TRUE(stream.ok()) << stream.status();
  ASSERT_TRUE(AwaitOpened(stream->get()));
  const absl::Duration end = Now() + kDeadline;
  while (driver.num_streams() < 4 || !(*stream)->is_open()) {
    ASSERT_LT(Now(), end);
    (*stream)->Maintain(Now());
    const DriverStream::Events events = (*stream)->Take();
    ASSERT_TRUE(events.ended.ok()) << events.ended;
    Wait(stream->get(), end);
  }
}

TEST_F(DriverStreamTest, ADriverOfAnotherVersionEndsAnAgentThatNeverHadWork) {
  class Refusing : public v1::AgentService::Service {
    grpc::Status Connect(grpc::ServerContext* context,
                         grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
      return {grpc::StatusCode::FAILED_PRECONDITION, "node n0: speaks version 5"};
    }
  } driver;
  const Serving serving(&driver, absl::StrCat("unix:", directory_, "/d.sock"));
  const auto stream =
      DriverStream::Create(OptionsFor(absl::StrCat("unix:", directory_, "/d.sock")));
  ASSERT_TRUE(stream.ok()) << stream.status();
  absl::Status ended;
  for (const absl::Duration end = Now() + kDeadline; ended.ok() && Now() < end;) {
    (*stream)->Maintain(Now());
    ended = (*stream)->Take().ended;
    Wait(stream->get(), end);
  }
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
}

// A new stream replaces the channel of the one before. The end of a channel waits for gRPC's
// thread, which may still be at the end of that stream. The bug behind this test was that each
// waited for the other: an agent that had been frozen while it wrote to the driver hung when it
// thawed.
TEST_F(DriverStreamTest, AStreamOpensAtTheMomentAtWhichTheOneBeforeEnds) {
  constexpr int kStreams = 300;
  const std::string address = absl::StrCat("unix:", directory_, "/d.sock");
  EndingDriver driver;
  const Serving serving(&driver, address);
  auto stream = DriverStream::Create(OptionsFor(address));
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::promise<void> done;
  std::future<void> all = done.get_future();
  std::thread agent([&] {
    // Without the waits between streams, which take their time from the caller.
    for (absl::Duration now = Now(); driver.num_streams() < kStreams; now += absl::Minutes(1)) {
      (*stream)->Maintain(now);
    }
    done.set_value();
  });
  const bool ended =
      all.wait_for(absl::ToChronoMilliseconds(6 * kDeadline)) == std::future_status::ready;
  if (!ended) {
    std::fprintf(stderr, "the stream hangs after %d others\n", driver.num_streams());
    std::abort();  // the thread can be joined by nobody
  }
  agent.join();
}

TEST_F(DriverStreamTest, AnAbsentDriverIsLoggedAfterSomeSecondsAndThenOnceAMinute) {
  base::InitLog("agent n0", base::LogLevel::kInfo);  // to standard error
  for (const std::string& address :
       {absl::StrCat("unix:", directory_, "/d.sock"), std::string("127.0.0.1:1")}) {
    DriverStreamOptions options;
    options.address = *client::ParseAddress(address);
    options.insecure = !options.address.is_unix();
    // Returns the log of a driver that is away for this long.
    const auto log_of = [&](absl::Duration absence) {
      testing::internal::CaptureStderr();
      {
        const auto stream = DriverStream::Create(options);
        EXPECT_TRUE(stream.ok()) << stream.status();
        const absl::Duration start = Now();
        for (absl::Duration passed; passed <= absence; passed += absl::Seconds(1)) {
          (*stream)->Maintain(start + passed);
          (*stream)->Take();
        }
      }
      return testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(log_of(absl::Seconds(4)), "") << address;
    const std::string log = log_of(absl::Seconds(60));
    EXPECT_TRUE(absl::StrContains(log, absl::StrCat("no driver can be reached at ", address)))
        << log;
    EXPECT_TRUE(absl::StrContains(log, options.insecure ? "refused" : "No such file")) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  }
}

// An agent that joined another user's driver would run that user's jobs as its own user.
TEST_F(DriverStreamTest, ADriverOfAnotherUserIsRefusedBeforeTheFirstByte) {
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  ASSERT_EQ(::mkdir((directory_ + "/ours").c_str(), 0700), 0);
  for (const bool only_the_process : {false, true}) {
    const std::string path = directory_ + (only_the_process ? "/ours/d.sock" : "/theirs/d.sock");
    DriverStreamOptions options;
    options.address = *client::ParseAddress(path);
    const auto stream = DriverStream::Create(options);
    ASSERT_TRUE(stream.ok()) << stream.status();
    EXPECT_EQ((*stream)->CheckAddress(), absl::OkStatus());  // nobody is there yet
    base::OtherUsersListener listener(path, only_the_process);
    const absl::Status refused = (*stream)->CheckAddress();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), base::DescribeUser(base::kOtherUser)) &&
                absl::StrContains(refused.message(), "run the agent as the user who runs"))
        << refused;
    for (int i = 0; i < 3; ++i) {
      (*stream)->Maintain((*stream)->NextWake());
      EXPECT_FALSE((*stream)->Take().opened);
    }
    EXPECT_LT((*stream)->NextWake(), absl::InfiniteDuration());  // it goes on trying
    EXPECT_EQ(listener.Stop(), 0);
  }
}

}  // namespace
}  // namespace megascale::agent
