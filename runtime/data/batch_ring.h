// The ring through which the one loader of a machine feeds its workers: shared memory that the
// agent makes, with one slot per step. Steps follow each other without a gap; step s lies in slot s
// modulo num_slots.
//
// The whole protocol is two kinds of counters: the newest published step, which only the writer
// moves, and for each reader the newest step that it has released. A slot is written only while no
// reader may look at it, and is visible only after it is whole. So a process that is killed
// anywhere leaves nothing behind: a half-written slot was never published, and a restarted loader
// goes on after the newest published step.
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
#include "runtime/base/shared_memory.h"

namespace megascale::data {

struct BatchRingShape {
  int num_slots = 2;  // steps that the loader may be ahead, at least 1
  std::vector<int>
      data_parallel_indices;  // whose batches this machine's ranks need; distinct, not empty
  int num_microbatches = 0;   // per data-parallel index and step
  int micro_batch_size = 0;   // samples
  int seq_length = 0;         // tokens; a sample has one more
  int num_readers = 0;        // ranks of this machine that read the ring, at least 1
};

// The tokens of one step.
template <typename Token>
class BasicBatchView {
 public:
  BasicBatchView(std::shared_ptr<const BatchRingShape> shape, Token* tokens)
      : shape_(std::move(shape)), tokens_(tokens) {}

  // One micro-batch: [micro_batch_size, seq_length + 1] tokens, row-major. Requires:
  // `data_parallel_index` is one of the ring's.
  absl::Span<Token> microbatch(int data_parallel_index, int microbatch) const;
  // One sample of it: seq_length + 1 tokens.
  absl::Span<Token> sample(int data_parallel_index, int microbatch, int index) const;

  const BatchRingShape& shape() const { return *shape_; }

 private:
  std::shared_ptr<const BatchRingShape> shape_;
  Token* tokens_;
};
using BatchView = BasicBatchView<const int32_t>;
using MutableBatchView = BasicBatchView<int32_t>;

size_t BatchRingBytes(const BatchRingShape& shape);

// Makes an empty ring whose first step will be `first_step` + 1. Once, before the region is passed
// on. Requires: the region has BatchRingBytes(shape) bytes.
void FormatBatchRing(base::SharedMemory& region, const BatchRingShape& shape, int64_t first_step);

// The mapped ring, checked once. Used by writer and reader.
class BatchRing {
 public:
  // Errors: InvalidArgument - the region is no formatted ring.
  static absl::StatusOr<BatchRing> Open(base::SharedMemory* region);

  const BatchRingShape& shape() const { return *shape_; }
  int64_t first_step() const;
  // Newest step that readers may see; first_step() when there is none.
  int64_t published() const;
  int64_t released(int reader) const;
  // Of the reader that is furthest behind.
  int SlowestReader() const;

 private:
  friend class BatchRingWriter;
  friend class BatchRingReader;
  friend void FormatBatchRing(base::SharedMemory& region, const BatchRingShape& shape,
                              int64_t first_step);
  struct Header;
  // A step as a count since first_step: the futex words.
  std::atomic<uint32_t>* published_word() const;
  std::atomic<uint32_t>* released_word(int reader) const;
  int32_t* tokens(int64_t step) const;

  Header* header_ = nullptr;
  std::shared_ptr<const BatchRingShape> shape_;
};

class BatchRingWriter {
 public:
  // Continues after the newest published step, whoever published it.
  static absl::StatusOr<BatchRingWriter> Create(base::SharedMemory* region);

  const BatchRingShape& shape() const { return ring_.shape(); }
  int64_t next_step() const { return ring_.published() + 1; }

  // Waits until the slot of next_step() is free, lets `fill` write it and publishes it.
  // Blocking: at most `timeout` before `fill`. Errors: DeadlineExceeded - a reader still holds the
  // slot; nothing was done, call again; what `fill` returns - nothing was published.
  absl::Status Publish(absl::FunctionRef<absl::Status(int64_t step, const MutableBatchView&)> fill,
                       absl::Duration timeout);

 private:
  explicit BatchRingWriter(BatchRing ring) : ring_(std::move(ring)) {}
  BatchRing ring_;
};

class BatchRingReader {
 public:
  // Errors: InvalidArgument - no ring, or it has no reader of this index.
  static absl::StatusOr<BatchRingReader> Create(base::SharedMemory* region, int reader);

  const BatchRingShape& shape() const { return ring_.shape(); }

  // Waits until `step` is published. The view stays valid until this reader releases the step.
  // Errors: DeadlineExceeded - not there yet, call again; FailedPrecondition - this reader released
  // it before.
  absl::StatusOr<BatchView> Wait(int64_t step, absl::Duration timeout) const;

  // Gives up all steps up to `step`. Releasing twice is once. Requires: `step` is published.
  void Release(int64_t step);

 private:
  BatchRingReader(BatchRing ring, int reader) : ring_(std::move(ring)), reader_(reader) {}
  BatchRing ring_;
  int reader_;
};

}  // namespace megascale::data
