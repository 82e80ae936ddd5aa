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

std::vector<std::string> TextsOf(const std::vector<AddedTokenFinder::Pattern>& patterns) {
  std::vector<std::string> texts;
  texts.reserve(patterns.size());
  for (const auto& pattern : patterns) texts.push_back(pattern.text);
  return texts;
}

}  // namespace

// Looks for matches from left to right. Trying each place is the quickest way in usual texts. Where
// that looks at far more bytes than the text has, because patterns are long and nearly match at
// every place, one pass finds all that is left.
class AddedTokenFinder::Search {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };

  Search(const AddedTokenFinder& finder, absl::string_view text) : finder_(finder), text_(text) {}

  // Returns the first match from `from` on; nullptr as its token: none. Requires: `from` does not
  // fall from call to call.
  Match Next(size_t from) {
    for (size_t at = from; at < text_.size() && !found_all_; ++at) {
      if (num_steps_ > kStepsPerByte * text_.size()) {
        FindAll(at);
        break;
      }
      if (!finder_.begins_[static_cast<unsigned char>(text_[at])]) continue;
      const int32_t index = finder_.LongestAt(text_.substr(at), &num_steps_);
      if (index >= 0) return MatchOf(at, index);
    }
    while (!all_.empty() && all_begin_ + all_.back().begin < from) all_.pop_back();
    if (all_.empty()) return {};
    return MatchOf(all_begin_ + all_.back().begin, all_.back().pattern);
  }

 private:
  static constexpr size_t kStepsPerByte = 8;

  void FindAll(size_t from) {
    found_all_ = true;
    all_begin_ = from;
    all_ = finder_.matches_.Find(text_.substr(from));
  }

  Match MatchOf(size_t begin, int32_t index) const {
    const Pattern& pattern = finder_.patterns_[index];
    return {begin, begin + pattern.text.size(), &pattern.token};
  }

  const AddedTokenFinder& finder_;
  const absl::string_view text_;
  size_t num_steps_ = 0;
  bool found_all_ = false;
  std::vector<LongestMatches::Match> all_;  // those that are left, the last one first
  size_t all_begin_ = 0;                    // where the text of `all_` begins
};

AddedTokenFinder::AddedTokenFinder(std::vector<Pattern> patterns)
    : patterns_(std::move(patterns)), pattern_at_(1, -1), matches_(TextsOf(patterns_)) {
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

int32_t AddedTokenFinder::LongestAt(absl::string_view text, size_t* num_steps) const {
  int32_t longest = -1;
  uint32_t node = 0;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const auto edge = children_.find(EdgeOf(node, text[at]));
    if (edge == children_.end()) break;
    node = edge->second;
    if (pattern_at_[node] >= 0) longest = pattern_at_[node];
  }
  *num_steps += at + 1;
  base::CountWork(at + 1);
  return longest;
}

void AddedTokenFinder::Split(absl::string_view text, bool skip_special,
                             absl::FunctionRef<void(const Part&)> on_part) const {
  size_t done = 0;  // what comes before was given to on_part
  SpaceRuns runs(text);
  Search search(*this, text);
  for (Search::Match match = search.Next(0); match.token != nullptr;
       match = search.Next(match.end)) {
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
