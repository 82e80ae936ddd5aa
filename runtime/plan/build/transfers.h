// The sends and receives of a rank, which move a micro-batch from chunk to chunk. Where transfers
// and passes do not overlap, makes them wait for each other.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/build/draft.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

class Transfers {
 public:
  // `draft` outlives this object.
  explicit Transfers(Draft* draft) : draft_(*draft) {}

  // Returns how many of the next passes run without an exchange in between; see Overlap.
  size_t NumTogether(absl::Span<const ComputeItem> next) const;
  // Call it before the receives and sends of the next passes that run together are added. Where
  // transfers do not overlap with passes, the next pass waits for the sends of the previous passes.
  void BeginTogether();

  // Adds a receive for the pass `id`, whose micro-batch is in `slot`, and returns its index. The
  // receive waits for `inputs`.
  int AddReceive(OpKind receive, InstructionId pass, int slot, std::vector<int> inputs);
  // Adds the send of the result of the last computation and returns its index.
  int AddSend(OpKind send, InstructionId pass, int slot);

 private:
  Instruction Transfer(OpKind kind, InstructionId pass, int slot) const;

  Draft& draft_;
  int computed_before_ = -1;  // last computation before the passes that run together
  std::vector<int> sends_;    // of these passes
};

}  // namespace megascale::plan
