#include "controlplane/agent/service/child_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "controlplane/agent/core/agent_core.h"
#include "runtime/base/frame.h"
#include "runtime/base/log.h"
#include "runtime/base/serialize.h"
#include "runtime/base/status.h"

namespace megascale::agent {
namespace {

constexpr int kLinkFd = 3;  // in the child
constexpr absl::Duration kSendTimeout = absl::Seconds(2);
constexpr int kLastLines = 10;
constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsMax = 16;  // in one go, so that one talkative child does not hold up the others

// Names the job and rank on the command line, for people who look at the list of processes.
std::string WhoseText(const ChildName& child) {
  if (child.rank == kTestRank || child.rank == kStackRank) return absl::StrCat(child.attempt);
  return absl::StrCat(child.job_id, "/attempt-", child.attempt, "/",
                      child.rank == kHostRank ? "host" : absl::StrCat("rank-", child.rank));
}

const char* CommandOf(int rank) {
  switch (rank) {
    case kTestRank:
      return "machine-test";
    case kStackRank:
      return "read-stacks";
    case kHostRank:
      return "host";
    default:
      return "worker";
  }
}

}  // namespace

launch::LogName LogNameOf(const std::string& log_directory, const ChildName& child) {
  // A job id must not be a path.
  const std::string job = absl::StrReplaceAll(child.job_id, {{"/", "_"}, {"..", "__"}});
  launch::LogName name;
  name.directory = absl::StrCat(log_directory, "/", job, "/attempt-", child.attempt);
  name.name = child.rank == kTestRank    ? "test"
              : child.rank == kStackRank ? "stacks"
              : child.rank == kHostRank  ? "host"
                                         : absl::StrFormat("rank-%05d", child.rank);
  return name;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    launch::ProcessKeeper* keeper, const ChildName& name, const std::string& log_directory,
    const std::vector<std::string>& environment) {
  ASSIGN_OR_RETURN(auto link, base::MakeSocketPair());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::ErrnoStatus(errno, "pipe for a log");
  base::UniqueFd output(ends[0]);
  const base::UniqueFd output_write(ends[1]);
  ::fcntl(output.get(), F_SETFL, O_NONBLOCK);

  launch::SpawnRequest request;
  request.token = name.process_id;
  request.program = "/proc/self/exe";
  request.arguments = {"megascale", CommandOf(name.rank), "--link-fd", absl::StrCat(kLinkFd),
                       "--of",      WhoseText(name)};
  request.environment = environment;
  request.descriptors = {{link.second.get(), kLinkFd}};
  request.output = output_write.get();
  ASSIGN_OR_RETURN(const pid_t pid, keeper->Spawn(request));
  std::unique_ptr<ChildProcess> child(
      new ChildProcess(name, std::move(link.first), std::move(output)));
  child->pid_ = pid;
  auto log = launch::LogFile::Open(LogNameOf(log_directory, name));
  if (log.ok()) {
    child->log_ = *std::move(log);
  } else {
    base::LogWarning(log.status().message());
  }
  return child;
}

std::vector<std::string> ChildProcess::ReadLink() {
  char buffer[kReadBytes];
  for (int i = 0; link_.valid() && i < kReadsMax; ++i) {
    const ssize_t got = ::recv(link_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      link_.reset();
      break;
    }
    inbound_.append(buffer, static_cast<size_t>(got));
  }
  // Frames as base::SendFrame makes them.
  std::vector<std::string> messages;
  size_t begin = 0;
  uint32_t length = 0;
  while (inbound_.size() - begin >= sizeof(length)) {
    std::memcpy(&length, inbound_.data() + begin, sizeof(length));
    if (length > base::kFrameBytesMax) {
      base::LogError(absl::StrCat("process ", pid_, " sent a frame of ", length, " bytes"));
      link_.reset();
      break;
    }
    if (inbound_.size() - begin - sizeof(length) < length) break;
    messages.push_back(inbound_.substr(begin + sizeof(length), length));
    begin += sizeof(length) + length;
  }
  inbound_.erase(0, begin);
  return messages;
}

void ChildProcess::DrainOutput() {
  char buffer[kReadBytes];
  for (int i = 0; output_.valid() && i < kReadsMax; ++i) {
    const ssize_t got = ::read(output_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      output_.reset();
      return;
    }
    if (log_ == nullptr) continue;
    const absl::Status appended = log_->Append({buffer, static_cast<size_t>(got)});
    if (!appended.ok() && !log_failed_) base::LogWarning(appended.message());
    log_failed_ = !appended.ok();
  }
}

std::string ChildProcess::LastLines() const {
  return log_ == nullptr ? std::string() : log_->LastLines(kLastLines);
}

absl::Status ChildProcess::Send(const google::protobuf::MessageLite& message,
                                const std::vector<int>& fds) {
  if (!link_.valid()) return absl::UnavailableError("the link is closed");
  ASSIGN_OR_RETURN(const std::string bytes, base::Serialize(message, base::kFrameBytesMax));
  return base::SendFrame(link_.get(), bytes, fds, kSendTimeout);
}

}  // namespace megascale::agent
