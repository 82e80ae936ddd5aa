// A driver's port under attack: messages that our clients never send, and far too many of those
// that they do send. After each attack the driver serves others, and its memory has grown by no
// more than the test allows.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

namespace pb = megascale::control::v1;

constexpr int kMiB = 1024;  // in the unit of /proc, KiB

// Sanitizers do, and so tell nothing about the program's memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeepsFreedMemory = true;
#else
constexpr bool kKeepsFreedMemory = false;
#endif

class AttackTest : public ::testing::Test {
 protected:
  static void RaiseDescriptors() {
    rlimit limit = {};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  void SetUp() override {
    RaiseDescriptors();
    cluster_.UseTcp();
    cluster_.StartDriver();
    stub_ = MakeStub();
    begin_kib_ = Of("VmRSS");
  }

  // Makes a stub with its own connection; gRPC's channels would share one.
  std::unique_ptr<pb::JobService::Stub> MakeStub() {
    grpc::ChannelArguments arguments;
    arguments.SetInt("attack", ++num_channels_);
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetMaxReceiveMessageSize(-1);
    return pb::JobService::NewStub(grpc::CreateCustomChannel(
        cluster_.address(), grpc::InsecureChannelCredentials(), arguments));
  }

  std::string DriverLog() const {
    return base::ReadFile(cluster_.directory() + "/driver.log", 64 << 20).value_or("");
  }

  // Returns a number of the driver's /proc/PID/status.
  int64_t Of(const std::string& name) const {
    const std::string status =
        base::ReadFile(absl::StrCat("/proc/", cluster_.driver_pid(), "/status"), 1 << 16)
            .value_or("");
    for (const absl::string_view line : absl::StrSplit(status, '\n')) {
      if (!absl::StartsWith(line, name + ":")) continue;
      int64_t value = 0;
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
      EXPECT_TRUE(absl::SimpleAtoi(words.at(1), &value)) << line;
      return value;
    }
    return 0;
  }

  void ExpectServedWithin(int grown_mib_max) {
    const CommandResult list = cluster_.Megascale({"list"});
    EXPECT_EQ(list.exit_code, 0) << list.err;
    const int64_t grown_mib = (Of("VmRSS") - begin_kib_) / kMiB;
    if (!kKeepsFreedMemory) {
      EXPECT_LE(grown_mib, grown_mib_max) << "MiB of the driver's resident memory";
    }
    std::printf("the driver's memory grew by %lld MiB\n", static_cast<long long>(grown_mib));
  }

  base::UniqueFd Connection() const { return Connection(cluster_.address()); }

  // `address`: HOST:PORT on loopback.
  static base::UniqueFd Connection(const std::string& address) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.at(1), &port)) << address;
    to.sin_port = htons(static_cast<uint16_t>(port));
    base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) fd.reset();
    return fd;
  }

  // Waits until the other end has closed and returns true; false after `seconds`.
  static bool IsClosed(int fd, int seconds) {
    return WaitUntil(
        [fd] {
          char bytes[4096];
          const ssize_t count = ::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
          return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
        },
        seconds);
  }

  pb::SubmitJobRequest Request(const std::string& job_id) const {
    pb::SubmitJobRequest request;
    request.set_job_id(job_id);
    auto* spec = request.mutable_spec();
    spec->set_name("toy");
    spec->mutable_model()->set_hidden_size(64);
    spec->mutable_model()->set_num_hidden_layers(4);
    spec->mutable_model()->set_num_attention_heads(4);
    spec->mutable_data()->add_files(cluster_.directory() + "/text");
    spec->mutable_train()->set_steps(10);
    spec->mutable_train()->set_seq_length(64);
    spec->mutable_train()->set_global_batch_size(4);
    spec->mutable_train()->set_micro_batch_size(2);
    return request;
  }

  grpc::Status Submit(const pb::SubmitJobRequest& request, pb::SubmitJobResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return stub_->SubmitJob(&context, request, response);
  }

  Cluster cluster_;
  std::unique_ptr<pb::JobService::Stub> stub_;
  int64_t begin_kib_ = 0;
  int num_channels_ = 0;
};

TEST_F(AttackTest, BytesOfOtherProtocolsCloseTheirConnectionOnly) {
  std::string noise(1 << 20, '\0');
  uint32_t state = 1;
  for (char& c : noise) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (const std::string& bytes :
       {noise, std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02", 4) + noise, preface + noise,
        preface + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x00", 9) + noise,
        std::string(1 << 20, '\0')}) {
    const base::UniqueFd fd = Connection();
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(IsClosed(fd.get(), 30));
  }
  ExpectServedWithin(64);
}

TEST_F(AttackTest, AThousandSilentConnectionsAreClosedAndLeaveRoomForOthers) {
  std::vector<base::UniqueFd> connections;
  for (int i = 0; i < 1000; ++i) connections.push_back(Connection());
  ExpectServedWithin(128);
  for (const base::UniqueFd& fd : connections) ASSERT_TRUE(IsClosed(fd.get(), 60));
  ExpectServedWithin(128);
}

TEST_F(AttackTest, AMessageAboveTheLimitIsRefusedWithItsSize) {
  pb::SubmitJobRequest request = Request("large");
  request.mutable_spec()->set_name(std::string((16 << 20) + 1, 'a'));
  pb::SubmitJobResponse response;
  const grpc::Status refused = Submit(request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "16777216")) << refused.error_message();

  request.mutable_spec()->set_name(std::string(15 << 20, 'a'));
  const grpc::Status named = Submit(request, &response);
  EXPECT_EQ(named.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(named.error_message(), "name: has 15728640 characters; expected at most 63");

  request = Request("large");
  request.mutable_spec()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_spec())
      ->AddLengthDelimited(1000, std::string(1 << 20, 'a'));
  const grpc::Status unknown = Submit(request, &response);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(unknown.error_message(),
            "job: has fields that this version does not know; use one version of megascale");
  ExpectServedWithin(256);
  EXPECT_EQ(cluster_.Megascale({"status", "large"}).exit_code, 4) << "a refused job was taken";
}

// 48 messages of 15 MiB, and 48 that are too large. This process itself holds them, too.
TEST_F(AttackTest, ManyLargeMessagesAtOnceTakeBoundedMemoryAndGiveItBack) {
  constexpr int kClients = 48;
  constexpr int kPeakMibMax = 512;  // docs/security.md
  for (const int mib : {15, 63}) {
    pb::SubmitJobRequest request = Request("large");
    request.mutable_spec()->set_name(std::string(mib << 20, 'a'));
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back([&, stub = MakeStub()] {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
        pb::SubmitJobResponse response;
        const grpc::StatusCode code = stub->SubmitJob(&context, request, &response).error_code();
        // What was read is invalid; what the budget has no room for is not read.
        EXPECT_TRUE(code == grpc::StatusCode::INVALID_ARGUMENT ||
                    code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                    code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED)
            << code;
      });
    }
    for (std::thread& thread : threads) thread.join();
    const int64_t peak_mib = Of("VmHWM") / kMiB;
    std::printf("%d messages of %d MiB: the driver's memory had %lld MiB at its peak\n", kClients,
                mib, static_cast<long long>(peak_mib));
    if (kKeepsFreedMemory) continue;
    EXPECT_LE(peak_mib, kPeakMibMax);
    EXPECT_TRUE(WaitUntil([&] { return (Of("VmRSS") - begin_kib_) / kMiB <= 64; }, 60))
        << (Of("VmRSS") - begin_kib_) / kMiB << " MiB stay";
  }
  ExpectServedWithin(64);
}

// A call keeps its request until it ends, so a watcher could keep much in what no rule allows.
TEST_F(AttackTest, WatchersCannotKeepLargeRequests) {
  pb::SubmitJobResponse submitted;
  ASSERT_TRUE(Submit(Request("watched"), &submitted).ok());
  pb::WatchJobRequest request;
  request.set_job_id("watched");
  const auto watch = [&](size_t num_bytes) {
    request.GetReflection()->MutableUnknownFields(&request)->Clear();
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
        1000, std::string(num_bytes, 'a'));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub_->WatchJob(&context, request);
    pb::WatchJobResponse first;
    if (!reader->Read(&first)) return reader->Finish().error_message();
    context.TryCancel();
    return std::string("watched");
  };
  EXPECT_EQ(watch(100), "watched");
  EXPECT_EQ(watch(2 << 20), "the request has 2097167 bytes; expected at most 1048576");
}

TEST_F(AttackTest, TheDriverItselfRefusesIdsAndPathsThatAreNone) {
  pb::SubmitJobResponse response;
  for (const std::string& id : {std::string(), std::string("../up"), std::string("a b"),
                                std::string("jöb"), std::string("-f"), std::string("a\x1b[2J"),
                                std::string(1000, 'a'), std::string("a\0b", 3)}) {
    const grpc::Status refused = Submit(Request(id), &response);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << id;
    EXPECT_TRUE(absl::StartsWith(refused.error_message(), "job id '")) << refused.error_message();
    for (const char c : refused.error_message()) EXPECT_FALSE(c >= 0 && c < ' ');
    grpc::ClientContext context;
    pb::GetJobRequest get;
    get.set_job_id(id);
    pb::GetJobResponse got;
    EXPECT_EQ(stub_->GetJob(&context, get, &got).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  pb::SubmitJobRequest relative = Request("job");
  relative.set_from_checkpoint("../checkpoint");
  EXPECT_EQ(Submit(relative, &response).error_message(),
            "from_checkpoint: '../checkpoint' is not an absolute path");
  pb::SubmitJobRequest broken = Request("job");
  broken.mutable_spec()->mutable_data()->set_files(0, "/a\nb");
  EXPECT_EQ(
      Submit(broken, &response).error_message(),
      "data.files: '/a\\nb' has control characters; expected a path without, rename the file");
  ExpectServedWithin(64);
}

TEST_F(AttackTest, TenThousandSubmitsOfOneIdAreOneJob) {
  constexpr int kThreads = 8;
  constexpr int kSubmits = 10'000;
  std::atomic<int> next{0};
  std::atomic<int> num_same{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (next.fetch_add(1) < kSubmits) {
        pb::SubmitJobResponse response;
        const grpc::Status status = Submit(Request("one"), &response);
        num_same += status.ok() && response.job().job_id() == "one" ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_same, kSubmits);
  grpc::ClientContext context;
  pb::ListJobsResponse jobs;
  EXPECT_TRUE(stub_->ListJobs(&context, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 1);
  const std::string log =
      base::ReadFile(cluster_.directory() + "/driver.log", 64 << 20).value_or("");
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, "job one was submitted")).size(), 2u)
      << "one event";
  ExpectServedWithin(64);
}

TEST_F(AttackTest, ManyDifferentJobsAreBounded) {
  constexpr int kJobsMax = 1000;
  pb::SubmitJobResponse response;
  for (int i = 0; i < kJobsMax; ++i) {
    const grpc::Status status = Submit(Request(absl::StrCat("job-", i)), &response);
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
  for (int i = 0; i < 100; ++i) {
    const grpc::Status refused = Submit(Request(absl::StrCat("more-", i)), &response);
    ASSERT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refused.error_message(),
              "the driver holds 1000 jobs that have not ended, which is the maximum; wait until "
              "some end, or cancel some (`megascale list`)");
  }
  ExpectServedWithin(256);
  EXPECT_EQ(cluster_.Megascale({"cancel", "job-7"}).exit_code, 0);
  EXPECT_TRUE(WaitUntil([&] { return Submit(Request("more"), &response).ok(); }, 30));
}

TEST_F(AttackTest, FiveHundredWatchersThatStopReadingTakeBoundedMemoryAndAreLetGoOf) {
  constexpr int kWatchers = 500;
  constexpr int kJobsAhead = 20;
  pb::SubmitJobResponse response;
  for (int i = 0; i < kJobsAhead; ++i) {
    ASSERT_TRUE(Submit(Request(absl::StrCat("ahead-", i)), &response).ok());
  }
  pb::SubmitJobRequest wide = Request("wide");
  // The largest possible job, so that one message is more than a connection buffers.
  for (int i = 0; i < 240; ++i) {
    wide.mutable_spec()->mutable_data()->add_files("/" + std::string(1000, 'a') + absl::StrCat(i));
  }
  const grpc::Status submitted = Submit(wide, &response);
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();

  struct Watcher {
    std::unique_ptr<pb::JobService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<pb::WatchJobResponse>> reader;
  };
  pb::WatchJobRequest request;
  request.set_job_id("wide");
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < kWatchers; ++i) {
    watchers.push_back(std::make_unique<Watcher>());
    Watcher& watcher = *watchers.back();
    watcher.stub = MakeStub();
    watcher.reader = watcher.stub->WatchJob(&watcher.context, request);
  }
  ASSERT_TRUE(WaitUntil([&] { return Of("Threads") >= kWatchers; }, 60)) << Of("Threads");
  // Streams beyond the limit are refused with the reason.
  std::string told;
  for (int i = 0; i < 20 && told.empty(); ++i) {
    watchers.push_back(std::make_unique<Watcher>());
    Watcher& watcher = *watchers.back();
    watcher.stub = MakeStub();
    watcher.reader = watcher.stub->WatchJob(&watcher.context, request);
    pb::WatchJobResponse first;
    if (!watcher.reader->Read(&first)) told = watcher.reader->Finish().error_message();
  }
  EXPECT_TRUE(absl::StrContains(told, "the driver streams to 512 clients, which is the maximum"))
      << told;
  // Each job that leaves the queue changes the watched job: all these messages would be 2.4 GB.
  for (int i = 0; i < kJobsAhead; ++i) {
    grpc::ClientContext context;
    pb::CancelJobRequest cancel;
    cancel.set_job_id(absl::StrCat("ahead-", i));
    pb::CancelJobResponse cancelled;
    EXPECT_TRUE(stub_->CancelJob(&context, cancel, &cancelled).ok());
    EXPECT_EQ(cluster_.Status("wide").queue_position(), kJobsAhead - i);
  }
  ExpectServedWithin(600);
  // The clients neither read nor close, so the driver must end the streams by itself.
  EXPECT_TRUE(WaitUntil([&] { return Of("Threads") < 100; }, 120)) << Of("Threads");
  ExpectServedWithin(600);
  for (const auto& watcher : watchers) watcher->context.TryCancel();
}

// A driver with TLS, and with as few descriptors as many systems give.
class StrangersTest : public AttackTest {
 protected:
  void SetUp() override {
    RaiseDescriptors();
    cluster_.UseTls();
    const std::string program = cluster_.directory() + "/few-descriptors";
    ASSERT_TRUE(base::WriteFileDurably(program, absl::StrCat("#!/bin/sh\nulimit -n 1024\nexec ",
                                                             Program(), " \"$@\"\n"))
                    .ok());
    ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
    cluster_.UseProgram(program);
    cluster_.StartDriver();
    begin_kib_ = Of("VmRSS");
  }

  // Opens connections that begin as `hello` and say nothing more.
  void OpenMany(int count, const std::string& hello) {
    for (int i = 0; i < count; ++i) {
      connections_.push_back(Connection());
      ::send(connections_.back().get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    }
  }

  int NumDescriptors() const {
    int count = 0;
    std::error_code gone;
    const auto folder = absl::StrCat("/proc/", cluster_.driver_pid(), "/fd");
    for (auto it = std::filesystem::directory_iterator(folder, gone);
         !gone && it != std::filesystem::directory_iterator(); it.increment(gone)) {
      ++count;
    }
    return count;
  }

  std::vector<base::UniqueFd> connections_;
};

// Without a certificate nobody gets further than the handshake; without a word, not even there.
TEST_F(StrangersTest, SilentConnectionsKeepNobodyOutAndEndNoDriver) {
  OpenMany(1300, "");
  ExpectServedWithin(32);
  EXPECT_LT(NumDescriptors(), 400);
  for (const base::UniqueFd& fd : connections_) ASSERT_TRUE(IsClosed(fd.get(), 30));
  EXPECT_TRUE(absl::StrContains(DriverLog(),
                                "closed a connection from 127.0.0.1: has more than 64 "
                                "connections that have sent nothing"))
      << DriverLog();
  // A driver that starts while they come opens its log.
  std::atomic<bool> stops{false};
  std::thread flood([&] {
    while (!stops) {
      base::UniqueFd fd = Connection();  // it fails while there is no driver
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (connections_.size() < 4000) connections_.push_back(std::move(fd));
    }
  });
  cluster_.KillDriver();
  cluster_.StartDriver();
  ExpectServedWithin(32);
  stops = true;
  flood.join();
}

TEST_F(StrangersTest, ConnectionsThatStopInTheHandshakeAreBoundedAndGo) {
  OpenMany(1300, "\x16");  // the first byte of TLS
  // The system accepts connections before the driver has seen them.
  const auto has_refused = [&] {
    return absl::StrContains(DriverLog(), "connections are in their handshake");
  };
  EXPECT_TRUE(WaitUntil(has_refused, 30)) << DriverLog();
  EXPECT_LT(NumDescriptors(), 768) << "a quarter is kept for the driver's own files";
  // Who comes from another address, or once they are gone, is served.
  EXPECT_TRUE(WaitUntil([&] { return cluster_.Megascale({"list"}).exit_code == 0; }, 60));
  for (const base::UniqueFd& fd : connections_) ASSERT_TRUE(IsClosed(fd.get(), 30));
  // The memory that they took is given back.
  EXPECT_TRUE(WaitUntil([&] { return (Of("VmRSS") - begin_kib_) / kMiB <= 32; }, 60))
      << (Of("VmRSS") - begin_kib_) / kMiB << " MiB";
}

// Whoever may connect to the page's port, but has no token.
TEST_F(AttackTest, ConnectionsWithoutTheTokenKeepNobodyFromThePage) {
  cluster_.KillDriver();
  cluster_.SetDriverFlags({"--http", "127.0.0.1:0"});
  cluster_.StartDriver();
  const auto file = [&](const std::string& name) {
    const auto text = base::ReadFile(cluster_.state_directory() + "/" + name, 4096);
    return std::string(absl::StripAsciiWhitespace(text.value_or("")));
  };
  const std::string token = file("http-token");
  ASSERT_FALSE(token.empty());
  EXPECT_FALSE(absl::StrContains(DriverLog(), token)) << "others may read the log";
  EXPECT_TRUE(absl::StrContains(DriverLog(), "; the URL with its token is in "));
  const std::string url = file("http-url");
  const std::string site = url.substr(7, url.find('/', 7) - 7);
  std::vector<base::UniqueFd> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(Connection(site));
    const std::string begin = "GET / HTTP/1.1\r\n";
    if (i % 2 == 0) ::send(idle.back().get(), begin.data(), begin.size(), MSG_NOSIGNAL);
  }
  for (int i = 0; i < 40; ++i) {
    const base::UniqueFd reader = Connection(site);
    const std::string request =
        absl::StrCat("GET /api/jobs HTTP/1.1\r\nHost: ", site, "\r\nAuthorization: Bearer ", token,
                     "\r\nConnection: close\r\n\r\n");
    ::send(reader.get(), request.data(), request.size(), MSG_NOSIGNAL);
    std::string answer;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(reader.get(), bytes, sizeof(bytes), 0)) > 0;) {
      answer.append(bytes, static_cast<size_t>(count));
    }
    ASSERT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200")) << answer;
    idle.push_back(Connection(site));
  }
}

}  // namespace
}  // namespace megascale::e2e
