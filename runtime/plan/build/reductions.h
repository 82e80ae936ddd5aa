// The sums of gradients of a rank: the buffers in which passes add gradients up, in turns, and the
// collectives (S, R) that end a turn. Before these, the gradient of a tied head is added to the
// bucket of the embedding.
#pragma once

#include <vector>

#include "runtime/plan/build/draft.h"
#include "runtime/plan/build/gradient_buffers.h"
#include "runtime/plan/build/tied_ends.h"

namespace megascale::plan {

class Reductions {
 public:
  // Sets the plan's number of gradient buffers. `draft` and `tied_ends` outlive this object.
  Reductions(Draft* draft, TiedEnds* tied_ends);

  // Sets the pass's gradient buffer: that of the current turn of its chunk or bucket. Begins a turn
  // if there is none.
  void UseBuffer(Instruction* pass);

  // With ZeRO stage 2: adds S and R of a bucket of one micro-batch. This ends the bucket's turn in
  // its buffer. `piece`: the piece of the pass that completed the bucket's gradients.
  void AddOfMicrobatch(int chunk, int microbatch, int bucket, int piece);
  // With ZeRO stage 1: call it when all gradients of a chunk are complete. Adds S and R of the
  // chunk's buckets; if reductions do not overlap with passes, leaves them to AddDelayed. `pieces`:
  // by bucket.
  void AddOfChunk(int chunk, std::vector<int> pieces);
  // Adds the reductions that AddOfChunk left to it. Requires: all passes of the rank have been
  // added.
  void AddDelayed();

  // Returns the last reduction of a chunk so far; -1: there is none.
  int LastOf(int chunk) const { return chunks_[draft_.IndexOf(chunk)].last; }

 private:
  struct Chunk {
    int buffer = kNoBuffer;        // of the current turn of the chunk or its bucket, if any
    int last = -1;                 // the last reduction so far
    std::vector<bool> has_sum;     // by bucket: an R has written to the shard
    std::vector<int> pieces = {};  // by bucket, of delayed reductions
  };

  void AddReductions(int chunk, const std::vector<int>& pieces);
  void AddReduction(int chunk, int microbatch, int bucket, int piece);

  Draft& draft_;
  TiedEnds& tied_ends_;
  GradientBuffers free_buffers_;
  std::vector<Chunk> chunks_;  // of this rank, in the model's order
  std::vector<int> delayed_;   // chunks, in the order in which their passes ended
};

}  // namespace megascale::plan
