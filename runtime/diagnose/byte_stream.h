// The bytes of a file one by one, decompressed if they are gzip. For ReadChromeTrace.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/diagnose/chrome_trace.h"

namespace megascale::diagnose {

// Threads: one at a time.
class ByteStream {
 public:
  static constexpr int kEnd = -1;

  // `bytes_max`: more uncompressed bytes are an error.
  ByteStream(const ReadBytes& read, int64_t bytes_max);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Returns the next byte without taking it, or kEnd at the end of the file and after an error.
  int Peek() {
    if (next_ == text_end_ && !Refill()) return kEnd;
    return static_cast<unsigned char>(text_[next_]);
  }
  // Requires: Peek() != kEnd.
  void Take() { ++next_; }
  int64_t num_taken() const { return num_before_ + static_cast<int64_t>(next_); }

  // Why the stream ended early; OK: it has not.
  const absl::Status& status() const { return status_; }

 private:
  struct Inflater;

  bool Refill();
  // Reads into file_, from `offset` on; returns 0 at the end and after an error.
  size_t ReadFile(size_t offset = 0);
  size_t ReadBeginning();  // as ReadFile, but enough to tell what the file is
  size_t Inflate();        // into text_

  const ReadBytes& read_;
  const int64_t bytes_max_;
  absl::Status status_;
  std::vector<char> file_;
  std::vector<char> text_;
  size_t next_ = 0;
  size_t text_end_ = 0;
  int64_t num_before_ = 0;  // bytes before text_
  bool has_begun_ = false;
  std::unique_ptr<Inflater> inflater_;  // null: the file is not compressed
};

}  // namespace megascale::diagnose
