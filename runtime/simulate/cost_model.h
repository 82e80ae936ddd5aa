// Estimates the times of a step's instructions on machines of given speed, before anything runs
// (`megascale plan`).
//
// The time of a pass is the time of its recorded operations one after another; exchanges of tensor
// ranks run at the same time. The time of an optimizer step or a batch load follows from the bytes
// that it moves through memory. A collective of n members moves (n - 1) / n of its bytes through
// each link, as a ring does; an all-reduce moves them twice. Links inside a machine have one rate,
// and links between machines another; links.h says on which link an exchange runs. Latency,
// launches and contention cost nothing in this model: ranks that share a network adapter do not
// slow each other down.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/model/pass_operations.h"
#include "runtime/plan/plan_options.h"
#include "runtime/simulate/links.h"
#include "runtime/tensor/tensor.h"

namespace megascale::simulate {

struct MachineRates {
  double flops_per_second = 0;          // of a rank's matrix products
  double memory_bytes_per_second = 0;   // of a rank's memory
  double link_bytes_per_second = 0;     // of each link between ranks of one machine
  double network_bytes_per_second = 0;  // of each link between ranks on different machines
};

// One chunk of the model on one rank.
struct ChunkWork {
  model::ChunkPasses passes;   // pieces: by bucket
  int64_t shard_elements = 0;  // elements that this rank's optimizer updates
};

struct CostOptions {
  plan::PlanOptions plan;
  tensor::DType compute = tensor::DType::kF32;
  bool tp_comm_overlap = true;         // exchanges of tensor ranks run during matrix products
  MachineRates rates;                  // all above 0
  std::vector<ChunkWork> chunks = {};  // of the whole model
};

// True if CostModel can estimate the time of this operation, from its operators, memory traffic or
// links.
bool HasPrice(plan::OpKind kind);

class CostModel {
 public:
  explicit CostModel(const CostOptions& options);

  // Returns the duration of an instruction whose rank exchanges on `link`. Requires: `instruction`
  // belongs to a plan built from options.plan.
  int64_t NanosOf(const plan::Instruction& instruction, Link link) const;

 private:
  // Operation, chunk and bucket of a pass, and the link of its exchanges. kWholePass stands for all
  // buckets.
  static constexpr int kWholePass = -1;
  using PassKey = std::tuple<plan::OpKind, int, int, Link>;

  double BytesPerSecond(Link link) const;
  void AddPasses(int chunk, const model::ChunkPasses& passes, Link link);
  double SecondsInMemory(const plan::Instruction& instruction) const;
  double SecondsOnLink(const plan::Instruction& instruction, Link link) const;

  const CostOptions options_;
  std::map<PassKey, int64_t> pass_nanos_;
};

}  // namespace megascale::simulate
