// The passes of a rank in the schedule's order, each with the receive of its input, the send of its
// result and, where it completes gradients, their reduction.
#pragma once

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/build/activation_slots.h"
#include "runtime/plan/build/draft.h"
#include "runtime/plan/build/reductions.h"
#include "runtime/plan/build/tied_ends.h"
#include "runtime/plan/build/transfers.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

class Passes {
 public:
  // The instructions for which passes wait. `batch`: the load, or -1 on a rank that loads nothing.
  // `gathers`: by chunk of the rank, the gather that ends last.
  struct Inputs {
    int batch = -1;
    std::vector<int> gathers = {};
  };

  // Sets the plan's numbers of activation slots. Requires: `order` is the rank's compute order. The
  // pointers and `order` outlive this object.
  Passes(Draft* draft, Reductions* reductions, TiedEnds* tied_ends,
         absl::Span<const ComputeItem> order);

  // Adds all passes of the step.
  void Add(Inputs inputs);

 private:
  // A micro-batch on its way through a chunk.
  struct Pass {
    int slot = kNoSlot;
    int forward = 0;
    int backward = 0;
    int send = -1;
    std::vector<int> inputs = {};  // of the next part: the wait for a free slot, then the receive
    std::vector<int> last_users = {};  // must end before the slot is free
  };
  struct Chunk {                    // of this rank
    std::vector<Pass> passes = {};  // by micro-batch
    ActivationSlots free_slots = ActivationSlots();
    std::vector<int> pieces = {};  // by bucket: its piece of the pass that is reduced next
    int num_forwards = 0;
    int num_ended = 0;  // passes
  };

  Chunk& ChunkOf(InstructionId id) { return chunks_[draft_.IndexOf(id.chunk())]; }
  Pass& PassOf(InstructionId id) {
    return ChunkOf(id).passes[static_cast<size_t>(id.microbatch())];
  }

  void AddTogether(absl::Span<const ComputeItem> items);
  void AddReceive(const ComputeItem& item);
  void AddItem(const ComputeItem& item);
  void AddForward(InstructionId id);
  void AddBackward(InstructionId id);
  void AddWeightGradient(InstructionId id);
  int AddLastPart(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes);
  int AddBack(InstructionId id, std::vector<int> inputs, int64_t flops, int64_t bytes,
              int num_buckets = 0);
  Instruction PassInstruction(InstructionId id, std::vector<int> inputs, int64_t flops,
                              int64_t bytes);
  void EndPass(InstructionId id);

  Draft& draft_;
  Reductions& reductions_;
  TiedEnds& tied_ends_;
  Transfers transfers_;
  const absl::Span<const ComputeItem> order_;
  Inputs inputs_;
  std::vector<Chunk> chunks_;  // in the model's order
};

}  // namespace megascale::plan
