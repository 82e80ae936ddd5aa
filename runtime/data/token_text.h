// A long sequence of tokens that can be read at any place: what samples are cut from.
// Threads: immutable; const methods from any thread. Blocking: reads of files.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/data/corpus.h"

namespace megascale::data {

class TokenText {
 public:
  virtual ~TokenText() = default;
  virtual int64_t num_tokens() const = 0;
  // Fills `out` with the tokens from `begin` on. Requires: they exist. Errors: DataLoss - a file
  // became shorter, or has an id outside the vocabulary; with its path.
  virtual absl::Status Read(int64_t begin, absl::Span<int32_t> out) const = 0;
};

// Every byte of a corpus's part is a token. Borrows the corpus.
class ByteText : public TokenText {
 public:
  explicit ByteText(CorpusPart part) : part_(part) {}
  int64_t num_tokens() const override { return part_.size_bytes(); }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override;

 private:
  CorpusPart part_;
};

// Several texts, one after the other. Borrows them.
class JoinedText : public TokenText {
 public:
  explicit JoinedText(const std::vector<const TokenText*>& parts);
  int64_t num_tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override;

 private:
  std::vector<const TokenText*> parts_;  // none is empty
  std::vector<int64_t> ends_;            // of each part
};

}  // namespace megascale::data
