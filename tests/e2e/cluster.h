// A real cluster on this machine for tests: driver and agents are processes of the built program,
// each test has a folder and sockets of its own, and everything dies with the test (parent-death
// signals). Waits are for a condition, with a deadline.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"

namespace megascale::e2e {

// A file that the test's target has as data: "cli/megascale".
std::string Runfile(const std::string& path);
// The built program.
std::string Program();

struct CommandResult {
  int exit_code = -1;  // -1: killed or timed out
  std::string out;
  std::string err;
};

// Runs a command to its end, at most 120 s; `environment` is added to the test's.
CommandResult Run(const std::vector<std::string>& command,
                  const std::map<std::string, std::string>& environment = {});

// Starts a process with its output in `log_path`; it dies with this test.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path);
// Sends SIGKILL and reaps a child of this test.
void KillAndReap(pid_t pid);
// The exit status of a child, once it ended: as of waitpid; -1 after `seconds`.
int WaitForExit(pid_t pid, int seconds);

bool IsAlive(pid_t pid);
// Children, grandchildren and so on, whose command line contains `word`.
std::vector<pid_t> DescendantsOf(pid_t pid, const std::string& word);

// True once `condition` holds; false after `seconds`.
bool WaitUntil(const std::function<bool()>& condition, int seconds);

class Cluster {
 public:
  // A new folder under /tmp, short enough for sockets.
  Cluster();
  // From now on driver, agents and commands talk over TCP on the loopback interface.
  void UseTcp();
  // The same with mutual TLS: makes an authority in certificates() and gives each its own.
  void UseTls();
  // Agents that are started from now on, and all their processes, are in this control group.
  void UseControlGroup(const std::string& directory);
  // Agents that are started from now on are started by this command, which executes what follows
  // it: {"/usr/bin/nice"}.
  void RunAgentsUnder(std::vector<std::string> command) { agent_prefix_ = std::move(command); }
  // Agents that are started from now on have these flags too.
  void SetAgentFlags(std::vector<std::string> flags) { agent_flags_ = std::move(flags); }
  // The folder with the logs stays behind.
  void KeepLogs() { keep_logs_ = true; }
  // Kills what is left and removes the folder; fails the test when a process outlives its parent.
  ~Cluster();

  void StartDriver();
  void StartAgent(int index, int slots);
  void KillDriver();
  void KillAgent(int index);
  void StopDriver();  // SIGTERM, waits for a clean exit
  // Wait for the end of a process that a test sent a signal to, and reap it. The status as of
  // waitpid; -1 when it did not end within a minute (it is killed then).
  int AwaitDriverExit();
  int AwaitAgentExit(int index);

  pid_t driver_pid() const { return driver_; }
  pid_t agent_pid(int index) const { return agents_.at(index); }
  const std::string& directory() const { return directory_; }
  const std::string& address() const { return address_; }
  std::string state_directory() const { return directory_ + "/state"; }
  // Where the steps of the job's checkpoints are.
  std::string checkpoints(const std::string& job_id) const {
    return state_directory() + "/jobs/" + job_id + "/checkpoints";
  }
  std::string certificates() const { return directory_ + "/certs"; }
  // --tls-ca, --tls-cert and --tls-key with NAME.pem and NAME.key of `folder`.
  static std::vector<std::string> TlsFlags(const std::string& folder, const std::string& name);

  // Runs `megascale ARGUMENTS…` against this cluster's driver.
  CommandResult Megascale(const std::vector<std::string>& arguments) const;
  // Submits the test's job under `job_id`; fails the test if it is not taken.
  void Submit(const std::string& job_id, const std::vector<std::string>& sets = {}) const;
  // What `status -o json` shows; an empty job where there is no answer.
  control::v1::Job Status(const std::string& job_id) const;
  bool WaitForStep(const std::string& job_id, int64_t step, int seconds = 60) const;
  // Waits for a terminal state and returns it.
  control::v1::JobState WaitForEnd(const std::string& job_id, int seconds = 120) const;
  // Of the newest committed checkpoint.
  std::string Digest(const std::string& job_id) const;
  // "step loss-bits" of every line of the job's loss log.
  std::vector<std::string> LossLog(const std::string& job_id) const;

 private:
  // What driver, agent or user must say about TLS.
  std::vector<std::string> TransportFlags(const std::string& role) const;

  std::string directory_;
  std::string address_;
  bool tcp_ = false;
  bool keep_logs_ = false;
  std::vector<std::string> agent_prefix_;
  std::vector<std::string> agent_flags_;
  bool tls_ = false;
  pid_t driver_ = -1;
  std::map<int, pid_t> agents_;
};

// The path of a job file that trains a toy model on generated text for `steps` steps: long enough
// to be hit in the middle.
std::string WriteJobFile(const std::string& directory);

}  // namespace megascale::e2e
