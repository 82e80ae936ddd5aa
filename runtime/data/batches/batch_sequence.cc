#include "runtime/data/batches/batch_sequence.h"

#include "runtime/base/check.h"

namespace megascale::data {

int64_t BatchSequence::NumEvaluated(int64_t step) const {
  const int64_t interval = options_.interval;
  if (interval == 0 || step <= options_.first_step) return 0;
  const bool ends_between = step == options_.last_step && step % interval != 0;
  return step / interval - options_.first_step / interval + (ends_between ? 1 : 0);
}

int64_t BatchSequence::NumberOf(int64_t step) const {
  return step - options_.first_step + options_.batches * NumEvaluated(step - 1);
}

int64_t BatchSequence::size() const {
  return options_.last_step - options_.first_step +
         options_.batches * NumEvaluated(options_.last_step);
}

BatchPlace BatchSequence::At(int64_t number) const {
  MEGASCALE_CHECK(number >= 1 && number <= size());
  int64_t low = options_.first_step + 1;  // its batch has at most this number
  int64_t high = options_.last_step + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (NumberOf(middle) <= number ? low : high) = middle;
  }
  const int64_t behind = number - NumberOf(low);
  return {.step = low, .evaluated = behind - 1};
}

}  // namespace megascale::data
