#include "runtime/data/tokenizer/bpe/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/byte_alphabet.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kHeldBytesMax = size_t{64} << 20;
constexpr int kNumBytes = 256;
constexpr int64_t kMergesBetweenReports = 256;

// Returns the last place at which text may be cut without changing its pieces: before a space
// between two letters, where every pattern begins a piece. 0: none. There is none within the first
// `searched` bytes.
size_t LastCut(absl::string_view text, size_t searched) {
  base::CountWork(text.size() - searched);
  for (size_t at = text.size(); at > std::max<size_t>(searched, 2); --at) {
    if (text[at - 2] == ' ' && absl::ascii_isalpha(static_cast<unsigned char>(text[at - 1])) &&
        absl::ascii_isalpha(static_cast<unsigned char>(text[at - 3]))) {
      return at - 2;
    }
  }
  return 0;
}

using PairKey = uint64_t;

PairKey KeyOf(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

class Trainer {
 public:
  Trainer(const WordCounter::Words& words, const BpeTrainOptions& options) : options_(options) {
    AddBytes();
    AddWords(words);
  }

  std::vector<std::pair<std::string, std::string>> Run() {
    while (num_made_ < options_.num_tokens_max && MergeMostFrequent()) {
      if (options_.on_progress && merges_.size() % kMergesBetweenReports == 0 && num_made_ > 0) {
        options_.on_progress(num_made_, options_.num_tokens_max);
      }
    }
    return std::move(merges_);
  }

 private:
  struct Word {
    std::vector<int32_t> symbols;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that may have it; some twice
  };
  struct Entry {
    int64_t count;
    PairKey pair;
    bool operator<(const Entry& other) const {  // the highest leaves the queue first
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  // Bytes get ids in the order of their letters, which decides between pairs of equal counts.
  void AddBytes() {
    std::vector<int> bytes(kNumBytes);
    for (int byte = 0; byte < kNumBytes; ++byte) bytes[byte] = byte;
    std::sort(bytes.begin(), bytes.end(),
              [](int a, int b) { return LetterOfByte(a) < LetterOfByte(b); });
    for (const int byte : bytes) {
      id_of_byte_[byte] = static_cast<int32_t>(tokens_.size());
      tokens_.emplace_back(1, static_cast<char>(byte));
      id_of_[tokens_.back()] = id_of_byte_[byte];
    }
  }

  void AddWords(const WordCounter::Words& words) {
    std::vector<std::pair<absl::string_view, int64_t>> sorted(words.begin(), words.end());
    std::sort(sorted.begin(), sorted.end());
    for (const auto& [text, count] : sorted) {
      const auto index = static_cast<uint32_t>(words_.size());
      Word& word = words_.emplace_back(Word{{}, count});
      for (const char byte : text) {
        word.symbols.push_back(id_of_byte_[static_cast<unsigned char>(byte)]);
      }
      for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
        Change(KeyOf(word.symbols[i], word.symbols[i + 1]), count, index);
      }
    }
    for (const auto& [pair, known] : pairs_) queue_.push({known.count, pair});
  }

  void Change(PairKey key, int64_t count, uint32_t word) {
    Pair& pair = pairs_[key];
    pair.count += count;
    if (count <= 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  }

  // Returns false if no pair is frequent enough.
  bool MergeMostFrequent() {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      const int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count != top.count) {  // words changed since it was put there
        if (count > 0) queue_.push({count, top.pair});
        continue;
      }
      if (count < std::max<int64_t>(1, options_.min_frequency)) return false;
      Merge(top.pair, std::move(found->second.words));
      return true;
    }
    return false;
  }

  void Merge(PairKey pair, std::vector<uint32_t> words) {
    const auto left = static_cast<int32_t>(pair >> 32);
    const auto right = static_cast<int32_t>(pair & UINT32_MAX);
    merges_.emplace_back(tokens_[left], tokens_[right]);
    const std::string token = tokens_[left] + tokens_[right];
    const auto [known, is_new] = id_of_.try_emplace(token, static_cast<int32_t>(tokens_.size()));
    const int32_t result = known->second;
    if (is_new) {
      tokens_.push_back(token);
      ++num_made_;
    }
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    grown_.clear();
    for (const uint32_t word : words) MergeInWord(word, {left, right, result});
    pairs_.erase(pair);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const PairKey key : grown_) {
      const auto found = pairs_.find(key);
      if (found != pairs_.end() && found->second.count > 0) queue_.push({found->second.count, key});
    }
  }

  struct Replacement {
    int32_t left, right, result;
  };
  void MergeInWord(uint32_t index, const Replacement& merge) {
    Word& word = words_[index];
    std::vector<int32_t>& symbols = word.symbols;
    size_t kept = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool matches =
          symbols[i] == merge.left && i + 1 < symbols.size() && symbols[i + 1] == merge.right;
      if (!matches) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        Change(KeyOf(symbols[kept - 1], merge.left), -word.count, index);
        Grow(KeyOf(symbols[kept - 1], merge.result), word.count, index);
      }
      if (i + 2 < symbols.size()) {
        Change(KeyOf(merge.right, symbols[i + 2]), -word.count, index);
        Grow(KeyOf(merge.result, symbols[i + 2]), word.count, index);
      }
      symbols[kept++] = merge.result;
      ++i;
    }
    symbols.resize(kept);
  }
  void Grow(PairKey key, int64_t count, uint32_t word) {
    Change(key, count, word);
    grown_.push_back(key);
  }

  const BpeTrainOptions& options_;
  int32_t id_of_byte_[kNumBytes];
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, int32_t> id_of_;
  std::vector<Word> words_;
  absl::flat_hash_map<PairKey, Pair> pairs_;
  std::priority_queue<Entry> queue_;
  std::vector<PairKey> grown_;  // pairs whose counts rose in the present merge
  std::vector<std::pair<std::string, std::string>> merges_;
  int64_t num_made_ = 0;
};

}  // namespace

void WordCounter::Feed(absl::string_view bytes) {
  repair_.Push(bytes, &held_);
  size_t cut = LastCut(held_, searched_);
  if (cut == 0 && held_.size() > kHeldBytesMax) cut = held_.size();
  if (cut > 0) {
    Count(absl::string_view(held_).substr(0, cut));
    base::CountWork(held_.size());
    held_.erase(0, cut);
  }
  searched_ = held_.size();
}

void WordCounter::Finish() {
  repair_.Finish(&held_);
  Count(held_);
  held_.clear();
  searched_ = 0;
}

void WordCounter::Count(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = FirstPiece(pattern_, text);
    ++words_[text.substr(0, length)];
    text.remove_prefix(length);
  }
}

std::vector<std::pair<std::string, std::string>> TrainBpe(const WordCounter::Words& words,
                                                          const BpeTrainOptions& options) {
  return Trainer(words, options).Run();
}

}  // namespace megascale::tokenizer
