// A real cluster on this machine for tests. Driver and agents are processes of the built program;
// each test has its own folder and sockets; everything dies with the test (parent-death signals).
// Every wait is for a condition, with a deadline.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controlplane/client/job_client.h"
#include "proto/control.pb.h"

namespace megascale::e2e {

// Returns the path of a data file of the test's target: "cli/megascale".
std::string Runfile(const std::string& path);
// Returns the path of the built program.
std::string Program();

struct CommandResult {
  int exit_code = -1;  // -1: killed or timed out
  std::string out;
  std::string err;
};

// Runs a command to its end, and kills it after `seconds_max`; `environment` is added to the
// test's.
CommandResult Run(const std::vector<std::string>& command,
                  const std::map<std::string, std::string>& environment = {},
                  int seconds_max = 120);

// Starts a process with its output in `log_path`; it dies with this test.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path);
// Sends SIGKILL and reaps a child of this test.
void KillAndReap(pid_t pid);
// Waits for the end of a child and returns its status as waitpid does; -1 after `seconds`.
int WaitForExit(pid_t pid, int seconds);

bool IsAlive(pid_t pid);
// Returns the children, grandchildren and so on whose command line contains `word`.
std::vector<pid_t> DescendantsOf(pid_t pid, const std::string& word);

// Returns the newest attempt that has tensor sockets under `directory`: a rank listens there, or a
// peer has connected; 0: there is no such attempt.
int64_t NewestAttemptWithSockets(const std::string& directory);

// Waits until `condition` holds and returns true; false after `seconds`.
bool WaitUntil(const std::function<bool()>& condition, int seconds);

class Cluster {
 public:
  // Makes a new folder under /tmp, with a path short enough for sockets.
  Cluster();
  // From now on driver, agents and commands talk over TCP on the interface with this address, if no
  // other is named the loopback interface.
  void UseTcp(const std::string& host = "127.0.0.1");
  // As UseTcp, with mutual TLS: makes an authority in certificates() and a certificate for each.
  void UseTls(const std::string& host = "127.0.0.1");
  // Puts agents that are started from now on, and all their processes, into this control group.
  void UseControlGroup(const std::string& directory);
  // Starts agents from now on through this command, which executes its arguments:
  // {"/usr/bin/nice"}.
  void RunAgentsUnder(std::vector<std::string> command) { agent_prefix_ = std::move(command); }
  // Adds these flags to agents that are started from now on.
  void SetAgentFlags(std::vector<std::string> flags) { agent_flags_ = std::move(flags); }
  // Adds these flags to a driver that is started from now on.
  void SetDriverFlags(std::vector<std::string> flags) { driver_flags_ = std::move(flags); }
  // Starts driver, agents and commands from now on as this build of the program.
  void UseProgram(std::string path) { program_ = std::move(path); }
  // Workers of agents that are started from now on sleep for 14 ms in each pass: a job of few steps
  // lasts long enough to be disturbed. The bits stay the same. Needs the data PACED of rules.bzl.
  void PaceJobs();
  // Keeps the folder with the logs after the test.
  void KeepLogs() { keep_logs_ = true; }
  // Kills all processes and removes the folder; fails the test if a process outlived its parent.
  ~Cluster();

  void StartDriver();
  void StartAgent(int index, int slots);
  void KillDriver();
  void KillAgent(int index);
  void StopDriver();  // SIGTERM, waits for a clean exit
  // Wait for the end of a process to which the test sent a signal, and reap it. Return its status
  // as waitpid does; -1: it did not end within a minute and was killed.
  int AwaitDriverExit();
  int AwaitAgentExit(int index);

  pid_t driver_pid() const { return driver_; }
  pid_t agent_pid(int index) const { return agents_.at(index); }
  const std::string& directory() const { return directory_; }
  const std::string& address() const { return address_; }
  std::string state_directory() const { return directory_ + "/state"; }
  // The folder of the job's checkpoints.
  std::string checkpoints(const std::string& job_id) const {
    return state_directory() + "/jobs/" + job_id + "/checkpoints";
  }
  std::string certificates() const { return directory_ + "/certs"; }
  // Returns --tls-ca, --tls-cert and --tls-key with NAME.pem and NAME.key of `folder`.
  static std::vector<std::string> TlsFlags(const std::string& folder, const std::string& name);

  // Runs `megascale ARGUMENTS…` against this cluster's driver.
  CommandResult Megascale(const std::vector<std::string>& arguments) const;
  // Submits the test's job under `job_id`; fails the test if the driver refuses it.
  void Submit(const std::string& job_id, const std::vector<std::string>& sets = {}) const;
  // Returns the job as the driver tells this process, without a command, since tests ask many times
  // a second; an empty job if there is no answer.
  control::v1::Job Status(const std::string& job_id) const;
  // Waits until this many agents have joined: where a job gets its ranks depends on who is there.
  bool WaitForAgents(int num_agents, int seconds = 60) const;
  // Waits, looking all the time, for the first tensor socket of an attempt after `attempt`.
  bool WaitForSockets(int64_t attempt, int seconds = 60) const;
  bool WaitForStep(const std::string& job_id, int64_t step, int seconds = 60) const;
  // Waits for a terminal state and returns it.
  control::v1::JobState WaitForEnd(const std::string& job_id, int seconds = 120) const;
  // Returns the digest of the newest committed checkpoint.
  std::string Digest(const std::string& job_id) const;
  // Returns "step loss-bits" for every line of the job's loss log.
  std::vector<std::string> LossLog(const std::string& job_id) const;

 private:
  // Returns the TLS flags of a driver, agent or user.
  std::vector<std::string> TransportFlags(const std::string& role) const;
  // Returns this process's own connection to the driver, as a user.
  client::JobClient& Client() const;

  std::string program_ = Program();
  std::string agent_program_;  // empty: program_
  std::string directory_;
  std::string address_;
  bool tcp_ = false;
  bool keep_logs_ = false;
  std::vector<std::string> agent_prefix_;
  std::vector<std::string> agent_flags_;
  std::vector<std::string> driver_flags_;
  bool tls_ = false;
  mutable std::unique_ptr<client::JobClient> client_;  // null until it is used
  pid_t driver_ = -1;
  std::map<int, pid_t> agents_;
};

// Writes a job file that trains a toy model on generated text, long enough for a fault in the
// middle, and returns its path.
std::string WriteJobFile(const std::string& directory);

}  // namespace megascale::e2e
