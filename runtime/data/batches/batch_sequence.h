// The order in which a loader publishes the batches of an attempt: that of each step, and after
// each step with an evaluation the batches of that evaluation. A pure function, so that a loader
// that is started again finds its place.
#pragma once

#include <cstdint>

namespace megascale::data {

struct BatchPlace {
  static constexpr int64_t kOfStep = -1;
  int64_t step = 0;             // the step that trains on the batch, or that is evaluated
  int64_t evaluated = kOfStep;  // index of the batch within an evaluation; kOfStep: none
  bool operator==(const BatchPlace&) const = default;
};

class BatchSequence {
 public:
  struct Options {
    int64_t first_step = 0;  // completed steps at the start of the attempt
    int64_t last_step = 0;   // of the job; at least first_step
    int64_t interval = 0;    // steps between evaluations; the last step has one, too; 0: none
    int64_t batches = 0;     // of an evaluation
  };
  explicit BatchSequence(const Options& options) : options_(options) {}

  // Returns the number of batches in all.
  int64_t size() const;
  // Returns the place of batch `number`, which counts from 1. Requires: 1 <= number <= size().
  BatchPlace At(int64_t number) const;

 private:
  // Returns how many steps of this attempt up to `step` are evaluated.
  int64_t NumEvaluated(int64_t step) const;
  // Returns the number of the batch on which `step` trains.
  int64_t NumberOf(int64_t step) const;

  const Options options_;
};

}  // namespace megascale::data
