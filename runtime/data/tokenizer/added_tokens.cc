#include "runtime/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/unicode_class.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

uint64_t EdgeOf(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

bool EndsWithWord(absl::string_view text) {
  return !text.empty() && UnicodeTable::Get().IsWord(ReadLastCodePoint(text).value);
}

bool BeginsWithWord(absl::string_view text) {
  return !text.empty() && UnicodeTable::Get().IsWord(ReadCodePoint(text.data()).value);
}

size_t BeginOfLastSpaces(absl::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const CodePoint last = ReadLastCodePoint(text);
    if (!UnicodeTable::Get().IsSpace(last.value)) break;
    text.remove_suffix(last.length);
  }
  base::CountWork(size - text.size() + 1);
  return text.size();
}

// Finds where runs of white space end. Positions inside the newest run are not looked at again, so
// that a token which is itself white space costs no more than others.
class SpaceRuns {
 public:
  explicit SpaceRuns(absl::string_view text) : text_(text) {}
  // Returns the end of the white space that begins at `at`, perhaps `at` itself.
  size_t EndAt(size_t at);

 private:
  const absl::string_view text_;
  size_t begin_ = 0;  // of the newest run
  size_t end_ = 0;
};

size_t LengthOfFirstSpaces(absl::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const CodePoint next = ReadCodePoint(text.data() + length);
    if (!UnicodeTable::Get().IsSpace(next.value)) break;
    length += next.length;
  }
  base::CountWork(length + 1);
  return length;
}

size_t SpaceRuns::EndAt(size_t at) {
  if (at < begin_ || at >= end_) {
    begin_ = at;
    end_ = at + LengthOfFirstSpaces(text_.substr(at));
  }
  return end_;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Pattern> patterns)
    : patterns_(std::move(patterns)), pattern_at_(1, -1) {
  for (size_t i = 0; i < patterns_.size(); ++i) {
    begins_[static_cast<unsigned char>(patterns_[i].text[0])] = true;
    uint32_t node = 0;
    for (const char byte : patterns_[i].text) {
      const auto next = static_cast<uint32_t>(pattern_at_.size());
      const auto [edge, is_new] = children_.try_emplace(EdgeOf(node, byte), next);
      if (is_new) pattern_at_.push_back(-1);
      node = edge->second;
    }
    if (pattern_at_[node] < 0) pattern_at_[node] = static_cast<int32_t>(i);
  }
}

int32_t AddedTokenFinder::LongestAt(absl::string_view text) const {
  int32_t longest = -1;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto edge = children_.find(EdgeOf(node, byte));
    if (edge == children_.end()) break;
    node = edge->second;
    if (pattern_at_[node] >= 0) longest = pattern_at_[node];
  }
  return longest;
}

AddedTokenFinder::Match AddedTokenFinder::Next(absl::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    const int32_t index = LongestAt(text.substr(at));
    if (index < 0) continue;
    return {at, at + patterns_[index].text.size(), &patterns_[index].token};
  }
  return {};
}

void AddedTokenFinder::Split(absl::string_view text, bool skip_special,
                             absl::FunctionRef<void(const Part&)> on_part) const {
  size_t done = 0;  // what comes before was given to on_part
  SpaceRuns runs(text);
  for (Match match = Next(text, 0); match.token != nullptr; match = Next(text, match.end)) {
    const AddedToken& token = *match.token;
    if (skip_special && token.special) continue;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, match.begin)) || BeginsWithWord(text.substr(match.end)))) {
      continue;
    }
    size_t begin = match.begin;
    size_t end = match.end;
    if (token.lstrip) {
      const size_t length = begin - std::min(done, begin);
      begin = done + BeginOfLastSpaces(text.substr(done, length));
    }
    if (token.rstrip) end = runs.EndAt(end);
    if (done < begin) on_part({text.substr(done, begin - done), -1});
    on_part({text.substr(begin, end - std::min(begin, end)), token.id});
    done = end;
  }
  if (done < text.size()) on_part({text.substr(done), -1});
}

}  // namespace megascale::tokenizer
