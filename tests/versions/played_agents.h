// The agents' side of a recorded conversation, played to a driver of today over its real services.
// A report is sent when the driver has decided what the agent knew when it made the report: it
// names the newest desired state that its agent took, and that must have come again, however the
// driver of today numbers it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "proto/agent.grpc.pb.h"
#include "tests/versions/conversation.pb.h"

namespace megascale::versions {

// One stream of one agent.
class PlayedAgent {
 public:
  using Up = agent::v1::AgentUp;
  using Down = agent::v1::AgentDown;
  // What is written in place of a recorded message, in order.
  using Variants = std::function<std::vector<Up>(const Up&)>;

  // `answers`: by FetchKey, what the recorded agent answered. It outlives the object.
  PlayedAgent(const std::shared_ptr<grpc::Channel>& channel,
              const std::map<std::string, Up>& answers, Variants variants);
  // Ends the stream, as an agent that ends does.
  ~PlayedAgent();

  // Says hello. Returns whether the driver took it in: it refuses an agent while it has not seen
  // the end of the stream of the one before.
  bool Join(const Up& hello);
  // Writes a recorded message other than a report.
  void Send(const Up& up);
  // Writes a recorded report, with the versions that today's driver gave to what it knows.
  void Report(agent::v1::ActualState actual);
  // Waits until the driver wants what the recorded one wanted: `wanted`, or, if it went on without
  // waiting for an answer, one of `later`. Returns the number of states that are over then; 0: it
  // does not want them.
  size_t Await(const agent::v1::DesiredState& wanted,
               const std::vector<agent::v1::DesiredState>& later);
  // Waits until all recorded requests to the store are answered; false: they are not.
  bool AwaitStore();

  // By "JOB/ATTEMPT", where the driver placed the ranks.
  std::map<std::string, std::string> placements();
  std::string newest();

 private:
  struct Seen {
    std::string text;
    int64_t version = 0;
    int64_t epoch = 0;
    std::string proof;
  };
  void Read();
  void Take(const Down& down);
  void Answer(const Down& down);
  void Write(const Up& up);
  // Returns the place after the last state with the text of `wanted`, from `next_` on; 0: there is
  // no such state.
  size_t Find(const std::string& text) const;

  const std::map<std::string, Up>& answers_;
  const Variants variants_;
  grpc::ClientContext context_;
  std::unique_ptr<agent::v1::AgentService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<Up, Down>> stream_;
  absl::Mutex write_mutex_;

  absl::Mutex mutex_;
  std::vector<Seen> seen_;                // all desired states
  size_t next_ = 0;                       // of these: the first one that may be found
  std::map<int64_t, size_t> by_version_;  // recorded version -> index in seen_
  std::map<std::string, std::string> placements_;
  bool has_ended_ = false;
  std::set<std::string> asked_;     // requests to the store
  std::set<std::string> answered_;  // those with a reply
  std::thread reader_;
};

// Says what a fetch asks for, without its request id; empty: `down` fetches nothing.
std::string FetchKey(const agent::v1::AgentDown& down);
// Returns the answers of the recorded agents to fetches, by node and key.
std::map<std::string, std::map<std::string, agent::v1::AgentUp>> AnswersIn(
    const v1::Conversation& conversation);

}  // namespace megascale::versions
