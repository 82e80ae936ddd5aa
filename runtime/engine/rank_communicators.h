// The communicators of a rank in one attempt: one for each channel of each of its groups. The
// fabric makes the communicators that go through the host. On top of these the device makes the
// communicators that exchange its tensors; each is ordered on the stream whose instructions use it.
//
// Threads: Create and Join on one thread; Of and all on any after Join; Abort on any. Ownership:
// borrows what its options and arguments name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/device/device.h"
#include "runtime/engine/peers/all_ranks.h"
#include "runtime/engine/rank_streams.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::engine {

class RankCommunicators {
 public:
  // Attaches to the machine's region. `fabric.placements` says which ranks share a machine. Errors:
  // as comm::Fabric::Create.
  static absl::StatusOr<std::unique_ptr<RankCommunicators>> Create(
      comm::FabricOptions fabric, const megascale::job::v1::JobSpec& spec, const plan::Mesh& mesh);

  // Connects this rank's groups and makes the communicators of its plans. Call it once. Blocking:
  // until all peers have connected. Errors: as comm::Fabric::Connect, or as
  // Device::MakeCommunicator.
  absl::Status Join(const std::vector<const plan::RankPlan*>& plans, device::Device* device,
                    const RankStreams& streams);

  // Returns null if the instruction does not communicate. Takes no heap memory.
  comm::Communicator* Of(const plan::Instruction& instruction) const;
  // Returns the way to all ranks, through the host; this rank alone before Join.
  const AllRanks* all() const { return &all_; }

  // Destroys the communicators that the device made, which use streams. Requires: the streams are
  // idle.
  void LeaveStreams() { communicators_.clear(); }

  // As comm::Fabric::Close and Abort.
  void Close() { fabric_->Close(); }
  void Abort(const absl::Status& reason) { fabric_->Abort(reason); }

 private:
  RankCommunicators(std::unique_ptr<comm::Fabric> fabric, std::vector<plan::Channel> channels)
      : channels_(std::move(channels)), fabric_(std::move(fabric)) {}
  absl::Status MakeHostCommunicators(const plan::RankPlan& plan);

  const std::vector<plan::Channel> channels_;  // that the job's plans use
  std::unique_ptr<comm::Fabric> fabric_;
  std::map<std::string, std::unique_ptr<comm::HostCommunicator>> host_communicators_;  // by name
  AllRanks all_;
  std::map<std::string, std::unique_ptr<comm::Communicator>> communicators_;  // by name
  std::map<plan::InstructionId, comm::Communicator*> communicator_of_;
};

}  // namespace megascale::engine
