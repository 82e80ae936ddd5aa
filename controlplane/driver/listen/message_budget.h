// Bounds the bytes of large messages that are worked on at one time: written to streams, or read as
// requests. Otherwise 500 watchers of a job of 12,288 ranks would hold 500 messages of 1 MiB, each
// with several copies in gRPC. Threads: any.
#pragma once

#include <atomic>
#include <cstddef>

namespace megascale::driver {

class MessageBudget {
 public:
  // Messages of at most this size always pass.
  static constexpr size_t kSmallBytes = 64 << 10;

  explicit MessageBudget(size_t bytes_max) : bytes_max_(bytes_max) {}

  // The right to work on one message; ends with the object.
  class Share {
   public:
    Share(MessageBudget* budget, size_t bytes);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // False: the messages of others leave no room now. A message larger than the whole budget is
    // granted when nobody else works on a large one.
    bool granted() const { return granted_; }

   private:
    MessageBudget& budget_;
    const size_t bytes_;  // 0: small
    bool granted_ = true;
  };

 private:
  const size_t bytes_max_;
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace megascale::driver
