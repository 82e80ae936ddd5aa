#include "controlplane/agent/driver_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/agent.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

absl::Duration Now() { return base::RealClock().Monotonic(); }

// Answers a hello, and notes the store requests of the present stream.
class TestDriver : public v1::AgentService::Service {
 public:
  explicit TestDriver(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~TestDriver() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AgentDown, v1::AgentUp>* stream) override {
    v1::AgentUp up;
    if (!stream->Read(&up)) return grpc::Status::OK;
    v1::AgentDown down;
    down.mutable_desired();
    stream->Write(down);
    while (stream->Read(&up)) {
      absl::MutexLock lock(&mutex_);
      for (const auto& request : up.store().requests()) received_.push_back(request.request_id());
    }
    return grpc::Status::OK;
  }

  bool AwaitReceived(const std::vector<std::string>& ids) {
    absl::MutexLock lock(&mutex_);
    const auto met = [&] { return received_.size() >= ids.size(); };
    mutex_.AwaitWithTimeout(absl::Condition(&met), kDeadline);
    return std::exchange(received_, {}) == ids;
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::vector<std::string> received_;
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  return address;
}

// Stands between a stream and its driver, and can end a connection as a killed process does:
// without a word. Takes one connection at a time.
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

  // False at the end.
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

  // As the agent's loop does, until a stream has opened.
  static bool AwaitOpened(DriverStream* stream) {
    const absl::Duration end = Now() + kDeadline;
    while (Now() < end) {
      stream->Maintain(Now());
      if (stream->Take().opened) return true;
      pollfd entry = {stream->events_fd(), POLLIN, 0};
      ::poll(&entry, 1, base::PollMilliseconds(std::min(stream->NextWake(), end) - Now()));
    }
    return false;
  }

  std::string directory_;
};

// A driver that is killed closes its socket without a word, and the next stream is opened at once.
// All that is sent on it arrives, without anything behind it that would push it. What went wrong
// once is a race: it took a busy machine to show.
TEST_F(DriverStreamTest, EverythingIsSentAfterTheDriverWasKilled) {
  TestDriver driver(absl::StrCat("unix:", directory_, "/d.sock"));
  Relay relay(directory_ + "/r.sock", directory_ + "/d.sock");
  DriverStreamOptions options;
  options.address = *client::ParseAddress(absl::StrCat("unix:", directory_, "/r.sock"));
  options.hello.set_node_id("n0");
  const auto stream = DriverStream::Create(options);
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
    // Longer than the first backoff: the next stream is opened at once, while the channel may still
    // take its connection for a good one.
    absl::SleepFor(absl::Milliseconds(120));
    relay.Cut();
  }
}

}  // namespace
}  // namespace megascale::agent
