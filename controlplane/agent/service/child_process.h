// One child process of the agent: the agent's end of the link, the child's output and its log.
// Private to this folder. Threads: one at a time; only Send blocks.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/launch/log_file.h"
#include "controlplane/launch/process_keeper.h"
#include "runtime/base/fd.h"

namespace megascale::agent {

// The rank of the process that tests the machine, and the folder of its logs, which is no job id.
inline constexpr int kTestRank = -2;
inline constexpr char kTestLogs[] = ".machine-test";
// The rank of a process that reads stacks, and the folder of its log.
inline constexpr int kStackRank = -3;
inline constexpr char kStackLogs[] = ".stacks";

struct ChildName {
  int64_t process_id = 0;
  std::string job_id;
  int64_t attempt = 0;
  int rank = 0;  // kHostRank: the host process
};

// Returns the name of the log of a rank (or kHostRank) of an attempt:
// LOG_DIRECTORY/JOB/attempt-2/rank-00003.N.log.
launch::LogName LogNameOf(const std::string& log_directory, const ChildName& child);

class ChildProcess {
 public:
  // Starts this same program as `megascale worker` or `megascale host`.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      launch::ProcessKeeper* keeper, const ChildName& name, const std::string& log_directory,
      const std::vector<std::string>& environment);

  const ChildName& name() const { return name_; }
  int pid() const { return pid_; }
  int link_fd() const { return link_.get(); }      // -1: closed
  int output_fd() const { return output_.get(); }  // -1: closed

  // Reads everything that the socket holds and returns the complete messages.
  std::vector<std::string> ReadLink();
  // Moves the process's output to its log.
  void DrainOutput();
  std::string LastLines() const;

  // Sends a message and descriptors. Blocking: at most 2 s. Errors: Unavailable - the process is
  // about to end; DeadlineExceeded - the process does not read, and the link is broken for good;
  // ResourceExhausted - the message is too large for the link.
  absl::Status Send(const google::protobuf::MessageLite& message, const std::vector<int>& fds);

 private:
  ChildProcess(ChildName name, base::UniqueFd link, base::UniqueFd output)
      : name_(std::move(name)), link_(std::move(link)), output_(std::move(output)) {}

  ChildName name_;
  int pid_ = 0;
  base::UniqueFd link_;
  base::UniqueFd output_;
  std::string inbound_;                   // bytes of an incomplete frame
  std::unique_ptr<launch::LogFile> log_;  // null: it could not be opened
  bool log_failed_ = false;
};

}  // namespace megascale::agent
