// The exchange of a tied embedding matrix between the first and the last stage. The first stage
// sends the matrix to the last stage before the head uses it (SE, RE). The last stage sends back
// the gradient of all these uses (SH, RH), which is added to the embedding's gradient before the
// reduction (A). Without PlanOptions::has_tied_ends, and on the stages between, this class adds
// nothing.
#pragma once

#include "runtime/plan/build/draft.h"

namespace megascale::plan {

class TiedEnds {
 public:
  // `draft` outlives this object.
  explicit TiedEnds(Draft* draft) : draft_(*draft) {}

  // Adds SE or RE. Requires: the gathers have been added, but no pass.
  void AddEmbedding();
  // Returns the index of SE; -1: the plan has no SE.
  int sent_embedding() const { return sent_embedding_; }
  // Returns the index of RE, for which each forward of the last chunk waits; -1: the plan has no
  // RE.
  int received_embedding() const { return received_embedding_; }

  // Adds SH; if transfers do not overlap with passes, leaves it to AddDelayed. Requires: the last
  // chunk's last forward has been added.
  void EndForwards();
  // Adds the SH that EndForwards left to it. Requires: all passes of the rank have been added.
  void AddDelayed();

  // Call it before the reduction of a bucket. If the bucket has the embedding and no later
  // micro-batch adds to the bucket's sum, adds RH and A, and returns the index of A, for which the
  // reduction must then wait. Otherwise returns `ready`, the index for which the reduction waits
  // anyway. `buffer`: the bucket's gradient buffer.
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
  int num_reduced_ = 0;  // reductions of the embedding's bucket so far
  bool is_delayed_ = false;
};

}  // namespace megascale::plan
