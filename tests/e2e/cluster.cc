#include "tests/e2e/cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/address/address.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20);

std::vector<char*> Arguments(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

// Runs in the child, after fork: executes the command.
[[noreturn]] void Exec(const std::vector<char*>& arguments, int out, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

// Waits for a process to end. An agent that was asked to end may wait for a hanging rank until the
// job's progress timeout: a minute.
int AwaitExit(pid_t pid) {
  const int status = WaitForExit(pid, 150);
  if (status == -1) KillAndReap(pid);
  return status;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Waits until `condition` of the job holds and returns true. Returns false after `seconds` in which
// the job neither made a step nor began an attempt: that a machine is busy is no failure.
bool WaitForJob(const std::function<Job()>& ask, const std::function<bool(const Job&)>& condition,
                int seconds) {
  auto deadline = steady_clock::now() + std::chrono::seconds(seconds);
  std::pair<int64_t, int64_t> reached;  // attempt, step
  while (true) {
    const Job job = ask();
    if (condition(job)) return true;
    const std::pair<int64_t, int64_t> now(job.attempt(), job.last_step());
    if (now > reached) {
      reached = now;
      deadline = steady_clock::now() + std::chrono::seconds(seconds);
    }
    if (steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, static_cast<int>(kPoll.count()));
  }
}

}  // namespace

std::string Runfile(const std::string& path) {
  const char* runfiles = ::getenv("TEST_SRCDIR");
  // A program that is started by hand finds them beside itself.
  std::error_code error;
  const std::string own = std::filesystem::read_symlink("/proc/self/exe", error).string();
  for (const std::string& root : {absl::StrCat(runfiles == nullptr ? "" : runfiles, "/megascale"),
                                  absl::StrCat(own, ".runfiles/megascale"), std::string(".")}) {
    const auto found = std::filesystem::canonical(absl::StrCat(root, "/", path), error);
    if (!error) return found.string();
  }
  std::fprintf(stderr,
               "no file %s beside %s: build it with Bazel, and start it where Bazel put it\n",
               path.c_str(), own.c_str());
  std::_Exit(2);
}

std::string Program() { return Runfile("cli/megascale"); }

CommandResult Run(const std::vector<std::string>& command,
                  const std::map<std::string, std::string>& environment, int seconds_max) {
  char out_path[] = "/tmp/ms-out-XXXXXX";
  char err_path[] = "/tmp/ms-err-XXXXXX";
  const base::UniqueFd out(::mkostemp(out_path, O_CLOEXEC));
  const base::UniqueFd err(::mkostemp(err_path, O_CLOEXEC));
  const std::vector<char*> arguments = Arguments(command);
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    Exec(arguments, out.get(), err.get());
  }
  const int status = WaitForExit(pid, seconds_max);
  CommandResult result;
  if (status == -1) {
    KillAndReap(pid);
  } else if (WIFEXITED(status)) {
    result.exit_code = WEXITSTATUS(status);
  }
  result.out = Slurp(out_path);
  result.err = Slurp(err_path);
  ::unlink(out_path);
  ::unlink(err_path);
  return result;
}

pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path) {
  const base::UniqueFd log(
      ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::vector<char*> arguments = Arguments(command);
  const pid_t pid = ::fork();
  if (pid == 0) Exec(arguments, log.get(), log.get());
  return pid;
}

void KillAndReap(pid_t pid) {
  MEGASCALE_CHECK(pid > 0);  // -1 would be every process of the machine
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

int WaitForExit(pid_t pid, int seconds) {
  int status = -1;
  const bool ended = WaitUntil([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, seconds);
  return ended ? status : -1;
}

bool IsAlive(pid_t pid) {
  const std::string stat = Slurp(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

std::vector<pid_t> DescendantsOf(pid_t pid, const std::string& word) {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int id = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &id)) continue;
    const std::string stat = Slurp(absl::StrCat("/proc/", id, "/stat"));
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    int parent = 0;
    if (std::sscanf(stat.c_str() + name_end + 1, " %*c %d", &parent) == 1) parents[id] = parent;
  }
  std::vector<pid_t> found;
  for (const auto& [id, parent] : parents) {
    pid_t ancestor = parent;
    while (ancestor > 1 && ancestor != pid)
      ancestor = parents.count(ancestor) ? parents[ancestor] : 0;
    std::string command = Slurp(absl::StrCat("/proc/", id, "/cmdline"));
    for (char& c : command) c = c == '\0' ? ' ' : c;
    if (ancestor == pid && command.find(word) != std::string::npos) found.push_back(id);
  }
  return found;
}

// Reads the kernel's list of Unix sockets: the last word of a line is "…/c-JOB-ATTEMPT-RANK". An
// accepted socket has the name of its listening socket.
int64_t NewestAttemptWithSockets(const std::string& directory) {
  std::ifstream list("/proc/net/unix");
  int64_t newest = 0;
  for (std::string line; std::getline(list, line);) {
    if (!absl::StrContains(line, directory)) continue;
    const std::vector<std::string> name = absl::StrSplit(line.substr(line.rfind('/') + 1), '-');
    int64_t attempt = 0;
    if (name.size() == 4 && name[0] == "c" && absl::SimpleAtoi(name[2], &attempt)) {
      newest = std::max(newest, attempt);
    }
  }
  return newest;
}

bool WaitUntil(const std::function<bool()>& condition, int seconds) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, static_cast<int>(kPoll.count()));
  }
  return true;
}

Cluster::Cluster() {
  char directory[] = "/tmp/ms-e2e-XXXXXX";
  EXPECT_NE(::mkdtemp(directory), nullptr);
  directory_ = directory;
  address_ = "unix:" + directory_ + "/driver.sock";
  WriteJobFile(directory_);
}

void Cluster::UseTcp(const std::string& host) {
  // Find a free port; another process may still take it.
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in local = {};
  local.sin_family = AF_INET;
  ASSERT_EQ(::inet_pton(AF_INET, host.c_str(), &local.sin_addr), 1);
  socklen_t size = sizeof(local);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&local), size), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size), 0);
  address_ = absl::StrCat(host, ":", ntohs(local.sin_port));
  tcp_ = true;
  client_.reset();
}

void Cluster::UseControlGroup(const std::string& directory) {
  const std::string enter = absl::StrCat("echo $$ > ", directory, "/cgroup.procs");
  RunAgentsUnder({"/bin/sh", "-c", enter + " && exec \"$@\"", "sh"});
}

void Cluster::PaceJobs() { agent_program_ = Runfile("tests/diagnose/paced_program"); }

void Cluster::UseTls(const std::string& host) {
  UseTcp(host);
  tls_ = true;
  const CommandResult made = Run({program_, "certs", "init", certificates(), "--host", host});
  EXPECT_EQ(made.exit_code, 0) << made.err;
}

std::vector<std::string> Cluster::TlsFlags(const std::string& folder, const std::string& name) {
  return {"--tls-ca",   folder + "/ca.pem",
          "--tls-cert", absl::StrCat(folder, "/", name, ".pem"),
          "--tls-key",  absl::StrCat(folder, "/", name, ".key")};
}

std::vector<std::string> Cluster::TransportFlags(const std::string& role) const {
  if (tls_) return TlsFlags(certificates(), role);
  return tcp_ ? std::vector<std::string>{"--insecure"} : std::vector<std::string>{};
}

Cluster::~Cluster() {
  std::set<pid_t> left;
  for (const auto& [index, pid] : agents_) {
    for (const pid_t child : DescendantsOf(pid, "")) left.insert(child);
    KillAndReap(pid);
  }
  if (driver_ > 0) KillAndReap(driver_);
  for (const pid_t pid : left) {
    EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 10))
        << "process " << pid << " outlived its agent";
  }
  if (keep_logs_ || ::testing::Test::HasFailure()) {
    std::printf("the logs are in %s\n", directory_.c_str());
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Cluster::StartDriver() {
  std::vector<std::string> command = {program_,  "driver",      "--listen",
                                      address(), "--state-dir", state_directory()};
  for (const std::string& flag : TransportFlags("driver")) command.push_back(flag);
  // A second of every start; tests of this feature ask for it.
  const auto& flags = driver_flags_;
  if (std::find(flags.begin(), flags.end(), "--machine-tests") == flags.end()) {
    command.insert(command.end(), {"--machine-tests", "off"});
  }
  command.insert(command.end(), driver_flags_.begin(), driver_flags_.end());
  driver_ = Spawn(command, directory_ + "/driver.log");
  const auto answers = [this] {
    client_.reset();
    return Client().List().ok();
  };
  EXPECT_TRUE(WaitUntil(answers, 30)) << Slurp(directory_ + "/driver.log");
}

void Cluster::StartAgent(int index, int slots) {
  const std::string name = absl::StrCat("n", index);
  std::vector<std::string> command = {agent_program_.empty() ? program_ : agent_program_,
                                      "agent",
                                      "--driver",
                                      address(),
                                      "--slots",
                                      absl::StrCat(slots),
                                      "--node-id",
                                      name,
                                      "--run-dir",
                                      absl::StrCat(directory_, "/", name)};
  for (const std::string& flag : TransportFlags("agent")) command.push_back(flag);
  command.insert(command.end(), agent_flags_.begin(), agent_flags_.end());
  command.insert(command.begin(), agent_prefix_.begin(), agent_prefix_.end());
  agents_[index] = Spawn(command, absl::StrCat(directory_, "/", name, ".log"));
}

void Cluster::KillDriver() {
  KillAndReap(driver_);
  driver_ = -1;
}

void Cluster::KillAgent(int index) {
  KillAndReap(agents_.at(index));
  agents_.erase(index);
}

void Cluster::StopDriver() {
  MEGASCALE_CHECK(driver_ > 0);
  ::kill(driver_, SIGTERM);
  EXPECT_EQ(WaitForExit(driver_, 30), 0) << "the driver's exit status";
  driver_ = -1;
}

int Cluster::AwaitDriverExit() { return AwaitExit(std::exchange(driver_, -1)); }

int Cluster::AwaitAgentExit(int index) {
  const pid_t pid = agents_.at(index);
  agents_.erase(index);
  return AwaitExit(pid);
}

client::JobClient& Cluster::Client() const {
  if (client_ == nullptr) {
    client::ClientOptions options;
    options.address = client::ParseAddress(address()).value();
    options.insecure = tcp_ && !tls_;
    if (tls_) {
      const std::string user = certificates() + "/user";
      options.tls = {certificates() + "/ca.pem", user + ".pem", user + ".key"};
    }
    client_ = client::JobClient::Create(options).value();
  }
  return *client_;
}

CommandResult Cluster::Megascale(const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {program_};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const bool local = arguments[0] == "checkpoint" || arguments[0] == "generate";
  for (const std::string& flag : TransportFlags("user")) {
    if (!local) command.push_back(flag);
  }
  return Run(command, {{"MEGASCALE_ADDRESS", address()}, {"NO_COLOR", "1"}});
}

void Cluster::Submit(const std::string& job_id, const std::vector<std::string>& sets) const {
  std::vector<std::string> arguments = {"submit", directory_ + "/job.yaml", "--job-id", job_id};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const CommandResult result = Megascale(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

Job Cluster::Status(const std::string& job_id) const {
  const auto job = Client().Get(job_id);
  if (!job.ok()) client_.reset();  // over TCP, a channel that failed connects again late
  return job.value_or(Job());
}

bool Cluster::WaitForAgents(int num_agents, int seconds) const {
  const auto have_joined = [&] {
    const auto shown = Client().Cluster();
    if (!shown.ok()) client_.reset();
    return shown.ok() && shown->nodes_size() >= num_agents;
  };
  return WaitUntil(have_joined, seconds);
}

bool Cluster::WaitForSockets(int64_t attempt, int seconds) const {
  const auto deadline = steady_clock::now() + std::chrono::seconds(seconds);
  while (NewestAttemptWithSockets(directory_) <= attempt) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool Cluster::WaitForStep(const std::string& job_id, int64_t step, int seconds) const {
  return WaitForJob([&] { return Status(job_id); },
                    [&](const Job& job) { return job.last_step() >= step; }, seconds);
}

control::v1::JobState Cluster::WaitForEnd(const std::string& job_id, int seconds) const {
  Job job;
  WaitForJob([&] { return job = Status(job_id); },
             [](const Job& now) {
               return now.state() == control::v1::JOB_STATE_SUCCEEDED ||
                      now.state() == control::v1::JOB_STATE_FAILED ||
                      now.state() == control::v1::JOB_STATE_CANCELLED;
             },
             seconds);
  if (job.state() != control::v1::JOB_STATE_SUCCEEDED) std::printf("%s\n", job.message().c_str());
  return job.state();
}

std::string Cluster::Digest(const std::string& job_id) const {
  const CommandResult result =
      Megascale({"checkpoint", "digest", Status(job_id).last_checkpoint().directory()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return std::string(absl::StripAsciiWhitespace(result.out));
}

std::vector<std::string> Cluster::LossLog(const std::string& job_id) const {
  std::vector<std::string> records;
  const std::string text = Slurp(Status(job_id).directory() + "/metrics.jsonl");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    telemetry::v1::StepRecord record;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(std::string(line.data(), line.size()),
                                                            &record, options)
                    .ok())
        << std::string(line.data(), line.size());
    char bits[64];
    std::snprintf(bits, sizeof(bits), "%a %a", record.loss(), record.grad_norm());
    records.push_back(absl::StrCat(record.step(), " ", bits));
    if (!record.has_held_out_loss()) continue;
    std::snprintf(bits, sizeof(bits), " held out %a", record.held_out_loss());
    records.back() += bits;
  }
  return records;
}

std::string WriteJobFile(const std::string& directory) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < 40000) {
    state = state * 1664525u + 1013904223u;
    absl::StrAppend(&text, "the ", (state >> 16) % 97, "th of ", (state >> 8) % 13, " lines\n");
  }
  EXPECT_TRUE(base::WriteFileDurably(directory + "/text", text).ok());
  const std::string job = absl::StrCat(R"(name: toy
model:
  hidden_size: 64
  num_hidden_layers: 4
  num_attention_heads: 4
data:
  files: [)",
                                       directory, R"(/text]
train:
  steps: 150
  seq_length: 32
  global_batch_size: 16
  micro_batch_size: 2
  seed: 3
optimizer:
  lr: 3e-3
  warmup_steps: 4
  clip_grad: 1.0
parallel:
  data_parallel_size: 2
  pipeline_model_parallel_size: 2
checkpoint:
  interval: 20
)");
  std::string path = directory + "/job.yaml";
  EXPECT_TRUE(base::WriteFileDurably(path, job).ok());
  return path;
}

}  // namespace megascale::e2e
