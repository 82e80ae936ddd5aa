// The ring through which a machine's single loader feeds its workers: shared memory that the agent
// makes, with one step per slot. Steps follow each other without a gap; step s is in slot s modulo
// num_slots. For the ring, the batches of evaluations are steps, too (batch_sequence.h).
//
// The protocol consists of counters: the newest published step, which only the writer advances, and
// for each reader the newest step that it has released. The writer writes a slot only when every
// reader has released it, and publishes it when it is complete. So a process may be killed
// anywhere: a half-written slot was never published, and a restarted loader continues after the
// newest published step.
//
// Ownership: writer and readers borrow the region. Threads: one writer; one thread per reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/base/process/shared_memory.h"

namespace megascale::data {

struct BatchRingShape {
  int num_slots = 2;  // steps that the loader may be ahead, at least 1
  std::vector<int>
      data_parallel_indices;  // whose batches this machine's ranks need; distinct, not empty
  int num_microbatches = 0;   // per data-parallel index and step
  int micro_batch_size = 0;   // in samples
  int seq_length = 0;         // in tokens; a sample has one token more
  int num_readers = 0;        // ranks of this machine that read the ring, at least 1
};

// The tokens of one step.
template <typename Token>
class BasicBatchView {
 public:
  BasicBatchView(std::shared_ptr<const BatchRingShape> shape, Token* tokens)
      : shape_(std::move(shape)), tokens_(tokens) {}

  // Returns one micro-batch: [micro_batch_size, seq_length + 1] tokens, row-major. Requires: the
  // ring has `data_parallel_index`.
  absl::Span<Token> microbatch(int data_parallel_index, int microbatch) const;
  // Returns one sample of it: seq_length + 1 tokens.
  absl::Span<Token> sample(int data_parallel_index, int microbatch, int index) const;

  const BatchRingShape& shape() const { return *shape_; }

 private:
  std::shared_ptr<const BatchRingShape> shape_;
  Token* tokens_;
};
using BatchView = BasicBatchView<const int32_t>;
using MutableBatchView = BasicBatchView<int32_t>;

size_t BatchRingBytes(const BatchRingShape& shape);

// Makes an empty ring whose first step will be `first_step` + 1. Call it once, before other
// processes get the region. Requires: the region has BatchRingBytes(shape) bytes.
void FormatBatchRing(base::SharedMemory& region, const BatchRingShape& shape, int64_t first_step);

// The mapped ring, checked once; for writer and reader.
class BatchRing {
 public:
  // Errors: InvalidArgument - the region is not a formatted ring.
  static absl::StatusOr<BatchRing> Open(base::SharedMemory* region);

  const BatchRingShape& shape() const { return *shape_; }
  int64_t first_step() const;
  // Returns the newest published step; first_step() if there is none yet.
  int64_t published() const;
  int64_t released(int reader) const;
  // Returns the reader that is furthest behind.
  int SlowestReader() const;

 private:
  friend class BatchRingWriter;
  friend class BatchRingReader;
  friend void FormatBatchRing(base::SharedMemory& region, const BatchRingShape& shape,
                              int64_t first_step);
  struct Header;
  // Counters of steps since first_step, which are also the futex words.
  std::atomic<uint32_t>* published_word() const;
  std::atomic<uint32_t>* released_word(int reader) const;
  int32_t* tokens(int64_t step) const;

  Header* header_ = nullptr;
  std::shared_ptr<const BatchRingShape> shape_;
};

class BatchRingWriter {
 public:
  // Continues after the newest published step, even if another process published it.
  static absl::StatusOr<BatchRingWriter> Create(base::SharedMemory* region);

  const BatchRingShape& shape() const { return ring_.shape(); }
  int64_t first_step() const { return ring_.first_step(); }
  int64_t next_step() const { return ring_.published() + 1; }

  // Tells readers which token ends a document. Call it before the first Publish, if at all.
  void SetEndToken(int32_t token);

  // Waits until the slot of next_step() is free, calls `fill` to write it, and publishes it.
  // Blocking: at most `timeout` before `fill`. Errors: DeadlineExceeded - a reader still holds the
  // slot; nothing was done, call again; an error of `fill` - nothing was published.
  absl::Status Publish(absl::FunctionRef<absl::Status(int64_t step, const MutableBatchView&)> fill,
                       absl::Duration timeout);

 private:
  explicit BatchRingWriter(BatchRing ring) : ring_(std::move(ring)) {}
  BatchRing ring_;
};

class BatchRingReader {
 public:
  // Errors: InvalidArgument - not a ring, or it has no reader `reader`.
  static absl::StatusOr<BatchRingReader> Create(base::SharedMemory* region, int reader);

  const BatchRingShape& shape() const { return ring_.shape(); }
  int64_t first_step() const { return ring_.first_step(); }

  // Waits until `step` is published and returns it. The view is valid until this reader releases
  // the step. Errors: DeadlineExceeded - not published yet, call again; FailedPrecondition - this
  // reader has released it.
  absl::StatusOr<BatchView> Wait(int64_t step, absl::Duration timeout) const;

  // Returns the token that ends a document, or -1 if the loader named none. Requires: Wait has
  // returned a step.
  int32_t end_token() const;

  // Releases all steps up to `step`; may be repeated. Requires: `step` is published.
  void Release(int64_t step);

 private:
  BatchRingReader(BatchRing ring, int reader) : ring_(std::move(ring)), reader_(reader) {}
  BatchRing ring_;
  int reader_;
};

}  // namespace megascale::data
