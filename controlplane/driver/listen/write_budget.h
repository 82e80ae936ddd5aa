// Bounds the bytes of large messages that are being written to streams at one time. Otherwise 500
// watchers of a job of 12,288 ranks would hold 500 messages of 1 MiB, each with several copies in
// gRPC. Threads: any.
#pragma once

#include <atomic>
#include <cstddef>

namespace megascale::driver {

class WriteBudget {
 public:
  // Messages of at most this size always pass.
  static constexpr size_t kSmallBytes = 64 << 10;

  explicit WriteBudget(size_t bytes_max) : bytes_max_(bytes_max) {}

  // The right to write one message; ends with the object.
  class Share {
   public:
    Share(WriteBudget* budget, size_t bytes);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // False: what others are writing leaves no room now. A message larger than the whole budget is
    // granted when nobody else writes a large one.
    bool granted() const { return granted_; }

   private:
    WriteBudget& budget_;
    const size_t bytes_;  // 0: small
    bool granted_ = true;
  };

 private:
  const size_t bytes_max_;
  std::atomic<size_t> bytes_ = 0;
};

}  // namespace megascale::driver
