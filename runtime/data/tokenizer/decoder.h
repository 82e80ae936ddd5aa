// From tokens back to text. A decoder is a list of steps through which the tokens pass one by one,
// so the text of a token comes out as soon as it is certain.
// Threads: Decoder is immutable; a DecodeState belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {

struct DecoderStep {
  enum class Kind {
    kReplace,       // `content` in place of each `pattern`
    kByteFallback,  // "<0x0A>" becomes its byte; bytes in a row become text, or U+FFFD for each
    kFuse,          // for the steps after it, all tokens are one
    kStrip,         // removes up to `start` times `content` at the beginning, `stop` at the end
    kMetaspace,     // `pattern` becomes a space; in the first token nothing, if `strips_first`
    kByteLevel,     // letters of the byte alphabet become bytes
  };
  Kind kind;
  std::string pattern;
  std::string content;
  int64_t start = 0;
  int64_t stop = 0;
  bool strips_first = false;
};

struct Decoder {
  std::vector<DecoderStep> steps;
  bool joins_with_space = false;  // no decoder at all: spaces between the tokens
};

// Returns why the steps are not supported in this order: byte-level beside other steps, steps after
// kFuse that would have to know the end.
absl::Status CheckDecoder(const Decoder& decoder);

// Borrows the decoder.
class DecodeState {
 public:
  explicit DecodeState(const Decoder* decoder);

  // Appends the text that is certain after the next token. Bytes that may be the beginning of a
  // character are held back. With whole_runs, all bytes of a run of fallback tokens are held back
  // until the run ends, so that an invalid run is replaced as the reference replaces it.
  void Push(absl::string_view token, std::string* out);
  // Appends the rest. Call it once, last.
  void Finish(std::string* out);
  void set_whole_runs(bool whole_runs) { whole_runs_ = whole_runs; }

 private:
  void Feed(size_t step, std::string token, std::string* out);
  void FeedBytes(size_t step, std::string token, std::string* out);
  void EndBytes(size_t step, std::string* out);
  std::string Strip(const DecoderStep& step, const std::string& token);

  const Decoder& decoder_;
  bool whole_runs_ = true;
  bool byte_level_ = false;
  bool is_first_ = true;            // nothing was pushed yet
  bool is_metaspace_first_ = true;  // nothing has reached kMetaspace yet
  bool fused_ = false;
  int64_t strips_left_ = -1;  // after kFuse; -1: nothing seen yet
  std::string bytes_;         // of a fallback, not yet text
  Utf8Repair repair_;
};

}  // namespace megascale::tokenizer
