#include "runtime/data/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/data/tokenizer/text/byte_alphabet.h"
#include "runtime/data/tokenizer/text_steps.h"

namespace megascale::tokenizer {
namespace {

using Kind = DecoderStep::Kind;

// Returns the byte that "<0x0A>" stands for; -1: another token.
int ByteOf(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char digit : token.substr(3, 2)) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(digit));
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return -1;
    byte = byte * 16 + (lower <= '9' ? lower - '0' : lower - 'a' + 10);
  }
  return byte;
}

absl::string_view NameOfKind(Kind kind) {
  switch (kind) {
    case Kind::kReplace:
      return "Replace";
    case Kind::kByteFallback:
      return "ByteFallback";
    case Kind::kFuse:
      return "Fuse";
    case Kind::kStrip:
      return "Strip";
    case Kind::kMetaspace:
      return "Metaspace";
    case Kind::kByteLevel:
      return "ByteLevel";
  }
  return "";
}

// Removes up to `count` times `content` from the beginning. Returns how many it removed.
int64_t StripBegin(absl::string_view content, int64_t count, absl::string_view* text) {
  int64_t removed = 0;
  while (removed < count && absl::ConsumePrefix(text, content)) ++removed;
  return removed;
}

}  // namespace

absl::Status CheckDecoder(const Decoder& decoder) {
  bool fused = false;
  int num_fallbacks = 0;
  for (const DecoderStep& step : decoder.steps) {
    const auto refuse = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("decoder ", NameOfKind(step.kind), ": is not supported ", why));
    };
    if (step.kind == Kind::kByteLevel && decoder.steps.size() > 1) return refuse("beside others");
    if (fused && (step.kind != Kind::kStrip || step.stop > 0)) return refuse("after Fuse");
    if (step.kind == Kind::kByteFallback && ++num_fallbacks > 1) return refuse("twice");
    fused = fused || step.kind == Kind::kFuse;
  }
  return absl::OkStatus();
}

DecodeState::DecodeState(const Decoder* decoder)
    : decoder_(*decoder),
      byte_level_(decoder->steps.size() == 1 && decoder->steps[0].kind == Kind::kByteLevel) {}

void DecodeState::Push(absl::string_view token, std::string* out) {
  if (decoder_.joins_with_space && !is_first_) out->push_back(' ');
  if (byte_level_) {
    std::string bytes;
    if (!BytesOfToken(token, &bytes)) bytes = std::string(token);
    repair_.Push(bytes, out);
  } else {
    Feed(0, std::string(token), out);
  }
  is_first_ = false;
}

void DecodeState::Finish(std::string* out) {
  if (byte_level_) return repair_.Finish(out);
  for (size_t step = 0; step < decoder_.steps.size(); ++step) {
    if (decoder_.steps[step].kind == Kind::kByteFallback) EndBytes(step, out);
  }
}

void DecodeState::Feed(size_t step_index, std::string token, std::string* out) {
  if (step_index == decoder_.steps.size()) {
    out->append(token);
    return;
  }
  const DecoderStep& step = decoder_.steps[step_index];
  switch (step.kind) {
    case Kind::kReplace:
      token = ReplaceEach(token, step.pattern, step.content);
      break;
    case Kind::kByteFallback:
      return FeedBytes(step_index, std::move(token), out);
    case Kind::kFuse:
      fused_ = true;
      break;
    case Kind::kStrip:
      token = Strip(step, token);
      break;
    case Kind::kMetaspace:
      token = ReplaceEach(token, step.pattern, step.strips_first && is_metaspace_first_ ? "" : " ");
      is_metaspace_first_ = false;
      break;
    case Kind::kByteLevel:
      break;
  }
  Feed(step_index + 1, std::move(token), out);
}

std::string DecodeState::Strip(const DecoderStep& step, const std::string& token) {
  absl::string_view rest = token;
  if (fused_) {
    // After Fuse all tokens are one, and this is its next part. What is stripped from its beginning
    // ends at the first other character.
    if (strips_left_ < 0) strips_left_ = step.start;
    strips_left_ -= StripBegin(step.content, strips_left_, &rest);
    if (!rest.empty()) strips_left_ = 0;
    return std::string(rest);
  }
  StripBegin(step.content, step.start, &rest);
  for (int64_t i = 0; i < step.stop && absl::ConsumeSuffix(&rest, step.content); ++i) {
  }
  return std::string(rest);
}

void DecodeState::FeedBytes(size_t step, std::string token, std::string* out) {
  const int byte = ByteOf(token);
  if (byte < 0) {
    EndBytes(step, out);
    return Feed(step + 1, std::move(token), out);
  }
  bytes_.push_back(static_cast<char>(byte));
  if (whole_runs_ || ValidPrefix(bytes_) != bytes_.size()) return;
  Feed(step + 1, std::exchange(bytes_, ""), out);
}

void DecodeState::EndBytes(size_t step, std::string* out) {
  const std::string bytes = std::exchange(bytes_, "");
  if (bytes.empty()) return;
  if (ValidPrefix(bytes) == bytes.size()) return Feed(step + 1, bytes, out);
  for (size_t i = 0; i < bytes.size(); ++i) {
    Feed(step + 1, std::string(kReplacementCharacter), out);
  }
}

}  // namespace megascale::tokenizer
