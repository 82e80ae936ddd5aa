// The exchange of a tied embedding matrix between the first and the last stage: the matrix goes to
// the head before its first use (SE, RE); the gradient of all its uses comes back (SH, RH), and is
// added to the embedding's before that is reduced (A). Without PlanOptions::has_tied_ends, and on
// the stages between, these add nothing.
#pragma once

#include "runtime/plan/build/draft.h"

namespace megascale::plan {

class TiedEnds {
 public:
  // `draft` outlives this.
  explicit TiedEnds(Draft* draft) : draft_(*draft) {}

  // Adds SE or RE. Requires: the gathers have been added, and no pass.
  void AddEmbedding();
  // Returns the index of SE; -1: the plan has none.
  int sent_embedding() const { return sent_embedding_; }
  // Returns the index of RE, for which each forward of the last chunk waits; -1: there is none.
  int received_embedding() const { return received_embedding_; }

  // The last chunk's last forward has been added. Adds SH, or leaves it until AddDelayed if
  // transfers do not overlap with passes.
  void EndForwards();
  // Adds what EndForwards left. Requires: all passes of the rank have been added.
  void AddDelayed();

  // Before the reduction of a bucket: adds RH and A if the bucket has the embedding and no later
  // micro-batch adds to its sum. Returns the index for which the reduction then waits. `ready`: the
  // index for which it waits otherwise. `buffer`: the bucket's gradient buffer.
  int AddHeadGradient(int chunk, int microbatch, int bucket, int ready, int buffer);

 private:
  bool is_first_stage() const { return draft_.options().has_tied_ends && draft_.stage() == 0; }
  bool is_last_stage() const {
    return draft_.options().has_tied_ends &&
           draft_.stage() == draft_.options().mesh.pipeline_size() - 1;
  }
  Instruction Transfer(OpKind kind, int64_t bytes) const;
  void AddSendOfGradient();

  Draft& draft_;
  int sent_embedding_ = -1;
  int received_embedding_ = -1;
  int num_reduced_ = 0;  // micro-batches, or all of them together, whose embedding was reduced
  bool is_delayed_ = false;
};

}  // namespace megascale::plan
