#include "runtime/data/tokenizer/bpe/bpe_model.h"

#include <algorithm>
#include <queue>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

// Up to this length looking through all pairs for the lowest rank beats a queue.
constexpr size_t kShortSymbols = 48;
constexpr uint32_t kNumAscii = 128;

// Merges `symbols` in place by looking for the lowest rank again and again.
void MergeShort(const MergeTable& merges, std::vector<int32_t>* symbols_pointer, size_t first) {
  int32_t* const symbols = symbols_pointer->data() + first;
  size_t size = symbols_pointer->size() - first;
  std::array<MergeTable::Found, kShortSymbols> pairs;  // of a symbol and the next one
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = merges.Find(symbols[i], symbols[i + 1]);
  size_t num_pairs = size;  // looked at
  while (size > 1) {
    num_pairs += size;
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].result;
    std::copy(symbols + best + 2, symbols + size, symbols + best + 1);
    if (best + 2 < size) {
      std::copy(pairs.begin() + static_cast<int64_t>(best) + 2,
                pairs.begin() + static_cast<int64_t>(size) - 1,
                pairs.begin() + static_cast<int64_t>(best) + 1);
    }
    --size;
    if (best > 0) pairs[best - 1] = merges.Find(symbols[best - 1], symbols[best]);
    if (best + 1 < size) pairs[best] = merges.Find(symbols[best], symbols[best + 1]);
  }
  base::CountWork(num_pairs);
  symbols_pointer->resize(first + size);
}

// Merges long pieces with a queue of pairs. Entries of pairs that are gone stay in the queue, and
// are recognised when their turn comes.
class LongMerge {
 public:
  LongMerge(const MergeTable& merges, std::vector<int32_t>* symbols, size_t first)
      : merges_(merges), ids_(symbols->begin() + static_cast<int64_t>(first), symbols->end()) {
    const auto size = static_cast<int64_t>(ids_.size());
    next_.resize(ids_.size());
    previous_.resize(ids_.size());
    for (int64_t i = 0; i < size; ++i) {
      next_[i] = i + 1 < size ? i + 1 : kNone;
      previous_[i] = i - 1;
    }
    for (int64_t i = 0; i + 1 < size; ++i) Offer(i);
    base::CountWork(ids_.size());
    while (!queue_.empty()) MergeFirst();
    symbols->resize(first);
    for (int64_t i = 0; i != kNone; i = next_[i]) symbols->push_back(ids_[i]);
  }

 private:
  static constexpr int64_t kNone = -1;
  static constexpr int32_t kGone = -1;

  struct Entry {
    uint32_t rank;
    int32_t result;
    int64_t at;
    bool operator<(const Entry& other) const {  // the highest leaves the queue first
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void Offer(int64_t at) {
    const MergeTable::Found found = merges_.Find(ids_[at], ids_[next_[at]]);
    if (found.rank != MergeTable::kNoRank) queue_.push({found.rank, found.result, at});
  }

  void MergeFirst() {
    const Entry entry = queue_.top();
    queue_.pop();
    base::CountWork(1);
    const int64_t at = entry.at;
    if (ids_[at] == kGone || next_[at] == kNone) return;
    const int64_t right = next_[at];
    if (merges_.Find(ids_[at], ids_[right]).result != entry.result) return;
    ids_[at] = entry.result;
    ids_[right] = kGone;
    next_[at] = next_[right];
    if (next_[at] != kNone) {
      previous_[next_[at]] = at;
      Offer(at);
    }
    if (previous_[at] != kNone) Offer(previous_[at]);
  }

  const MergeTable& merges_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> next_;
  std::vector<int64_t> previous_;
  std::priority_queue<Entry> queue_;
};

}  // namespace

BpeModel::BpeModel(const BpeSpec& spec)
    : merges_(spec.merges, spec.merge_ranks),
      start_(spec.start),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges),
      word_begin_(spec.word_begin) {
  bytes_.fill(-1);
  for (const auto& [symbol, id] : spec.symbols) {
    if (symbol.empty()) continue;
    if (start_ == BpeStart::kBytes) {
      if (symbol.size() == 1) bytes_[static_cast<uint8_t>(symbol[0])] = id;
    } else if (CharacterLength(symbol[0]) == symbol.size()) {
      const uint32_t character = ReadCodePoint(symbol.data()).value;
      characters_[character] = id;
      if (character < kNumAscii) bytes_[character] = id;
    }
  }
  if (start_ == BpeStart::kCharacters && EveryByteFallsBack()) {
    for (uint32_t byte = 0; byte < kNumAscii; ++byte) {
      if (bytes_[byte] < 0) bytes_[byte] = byte_fallback_[byte];
    }
  }
  every_byte_known_ = std::find(bytes_.begin(), bytes_.end(), -1) == bytes_.end();
  cuts_words_ = CanCutWords(spec);
  if (cuts_words_) FindCuts(spec);
  FillWords(spec);
}

// A cut before word_begin is safe if word_begin is a token, so that it ends a run of unknown
// characters, and no merge makes a token with word_begin after another character.
bool BpeModel::CanCutWords(const BpeSpec& spec) const {
  if (word_begin_.empty() || start_ == BpeStart::kBytes) return false;
  if (!characters_.contains(ReadCodePoint(word_begin_.data()).value)) return false;
  absl::flat_hash_set<int32_t> results;
  for (const BpeMerge& merge : spec.merges) results.insert(merge.result);
  return std::none_of(spec.symbols.begin(), spec.symbols.end(), [&](const auto& symbol) {
    if (!results.contains(symbol.second)) return false;
    absl::string_view rest = symbol.first;
    while (absl::StartsWith(rest, word_begin_)) rest.remove_prefix(word_begin_.size());
    return absl::StrContains(rest, word_begin_);
  });
}

bool BpeModel::EveryByteFallsBack() const {
  return byte_fallback_.size() == 256 && std::all_of(byte_fallback_.begin(), byte_fallback_.end(),
                                                     [](int32_t id) { return id >= 0; });
}

// A cut between two characters is safe if both are tokens or bytes, so that no run of unknown
// characters goes over it, and no merge has the one at the end of its left half and the other at
// the beginning of its right half. That is read from the tokens' texts, which must be those of
// their halves, and not of bytes.
void BpeModel::FindCuts(const BpeSpec& spec) {
  absl::flat_hash_map<int32_t, absl::string_view> text_of;
  for (const auto& [symbol, id] : spec.symbols) text_of.try_emplace(id, symbol);
  for (const int32_t id : spec.byte_fallback) text_of.erase(id);
  std::array<std::bitset<kNumAscii>, kNumAscii> joined;
  for (const BpeMerge& merge : spec.merges) {
    const absl::string_view left = text_of[merge.left];
    const absl::string_view right = text_of[merge.right];
    const absl::string_view whole = text_of[merge.result];
    if (left.empty() || right.empty() || whole != absl::StrCat(left, right)) return;
    const auto last = static_cast<uint8_t>(left.back());
    const auto first = static_cast<uint8_t>(right.front());
    if (last < kNumAscii && first < kNumAscii) joined[last].set(first);
  }
  for (uint32_t last = 0; last < kNumAscii; ++last) {
    for (uint32_t first = 0; first < kNumAscii; ++first) {
      cuts_[last][first] = bytes_[last] >= 0 && bytes_[first] >= 0 && !joined[last][first];
    }
  }
}

void BpeModel::FillWords(const BpeSpec& spec) {
  words_.Reserve(spec.symbols.size());
  std::vector<int32_t> ids;
  for (const auto& [symbol, id] : spec.symbols) {
    ids.clear();
    if (!ignore_merges_) Merge(symbol, &ids);
    if (ignore_merges_ || (ids.size() == 1 && ids[0] == id)) words_.Insert(symbol, id);
  }
}

void BpeModel::Encode(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (!cuts_words_) return EncodeWord(piece, ids);
  if (ignore_merges_) {
    const int32_t id = words_.Find(piece);
    if (id != WordTable::kAbsent) return ids->push_back(id);
  }
  while (!piece.empty()) {
    size_t end = 0;
    while (absl::StartsWith(piece.substr(end), word_begin_)) end += word_begin_.size();
    end = std::min(piece.find(word_begin_, end), piece.size());
    base::CountWork(end);
    const absl::string_view word = piece.substr(0, end);
    if (ignore_merges_) {
      Merge(word, ids);
    } else {
      EncodeWord(word, ids);
    }
    piece.remove_prefix(end);
  }
}

void BpeModel::EncodeWord(absl::string_view word, std::vector<int32_t>* ids) const {
  const int32_t id = words_.Find(word);
  base::CountWork(word.size());
  if (id != WordTable::kAbsent) return ids->push_back(id);
  size_t begin = 0;
  for (size_t i = 1; cuts_words_ && i < word.size(); ++i) {
    const auto last = static_cast<uint8_t>(word[i - 1]);
    const auto first = static_cast<uint8_t>(word[i]);
    if (last >= kNumAscii || first >= kNumAscii || !cuts_[last][first]) continue;
    EncodePart(word.substr(begin, i - begin), ids);
    begin = i;
  }
  if (begin == 0) return Merge(word, ids);
  EncodePart(word.substr(begin), ids);
}

void BpeModel::EncodePart(absl::string_view part, std::vector<int32_t>* ids) const {
  if (part.size() == 1) return ids->push_back(bytes_[static_cast<uint8_t>(part[0])]);
  const int32_t id = words_.Find(part);
  if (id != WordTable::kAbsent) return ids->push_back(id);
  Merge(part, ids);
}

void BpeModel::Merge(absl::string_view word, std::vector<int32_t>* ids) const {
  const size_t first = ids->size();
  AppendStart(word, ids);
  if (ids->size() - first <= kShortSymbols) {
    MergeShort(merges_, ids, first);
  } else {
    LongMerge(merges_, ids, first);
  }
}

void BpeModel::AppendStart(absl::string_view word, std::vector<int32_t>* symbols) const {
  if (start_ == BpeStart::kBytes && every_byte_known_) {
    const size_t first = symbols->size();
    symbols->resize(first + word.size());
    std::transform(word.begin(), word.end(), symbols->begin() + static_cast<int64_t>(first),
                   [this](char byte) { return bytes_[static_cast<uint8_t>(byte)]; });
    return;
  }
  AppendCharacters(word, symbols);
}

void BpeModel::AppendCharacters(absl::string_view word, std::vector<int32_t>* symbols) const {
  bool unknown_waits = false;
  const auto add_unknown = [&] {
    if (unknown_waits) symbols->push_back(*unknown_);
    unknown_waits = false;
  };
  while (!word.empty()) {
    const bool bytes = start_ == BpeStart::kBytes;
    const size_t length = bytes ? 1 : CharacterLength(word[0]);
    int32_t id = -1;
    if (bytes || length == 1) {
      id = bytes_[static_cast<uint8_t>(word[0])];
    } else {
      const auto found = characters_.find(ReadCodePoint(word.data()).value);
      if (found != characters_.end()) id = found->second;
    }
    if (id >= 0) {
      add_unknown();
      symbols->push_back(id);
    } else if (!AppendFallback(word.substr(0, length), symbols) && unknown_) {
      // As in the reference, an unknown character waits for the next known one, and bytes of a
      // fallback overtake it.
      if (!fuse_unknown_) add_unknown();
      unknown_waits = true;
    }
    word.remove_prefix(length);
  }
  add_unknown();
}

bool BpeModel::AppendFallback(absl::string_view character, std::vector<int32_t>* symbols) const {
  if (byte_fallback_.empty()) return false;
  const auto id_of = [this](char byte) { return byte_fallback_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; })) {
    return false;
  }
  for (const char byte : character) symbols->push_back(id_of(byte));
  return true;
}

}  // namespace megascale::tokenizer
