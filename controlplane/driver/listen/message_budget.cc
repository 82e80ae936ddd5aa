#include "controlplane/driver/listen/message_budget.h"

namespace megascale::driver {

MessageBudget::Share::Share(MessageBudget* budget, size_t bytes)
    : budget_(*budget), bytes_(bytes > kSmallBytes ? bytes : 0) {
  size_t before = budget_.bytes_;
  do {
    granted_ = bytes_ == 0 || before == 0 || before + bytes_ <= budget_.bytes_max_;
  } while (granted_ && !budget_.bytes_.compare_exchange_weak(before, before + bytes_));
}

MessageBudget::Share::~Share() {
  if (granted_) budget_.bytes_ -= bytes_;
}

}  // namespace megascale::driver
