// Measures how fast text becomes tokens on one core; exits with 1 if the text itself, or new text
// in which five bytes decide the next, is encoded at a median of less than --least MB/s.
//   bazel run //runtime/data/tokenizer:tokenizer_benchmark -- [--least 20] [FILE…]
// The vocabulary of 32,000 is learnt from the files (default: the fortunes of the Debian package).
// The text to encode is made from them by chance: each next byte follows the last five bytes, or
// the last three, as it does somewhere in the files. So no text occurs twice, and with three bytes
// half of the words are ones that the files do not have. Every text is encoded once, in documents
// of 4 KiB; the tokenizer keeps nothing between documents.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/file_list.h"
#include "runtime/data/tokenizer/bpe/bpe_trainer.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"

namespace megascale::tokenizer {
namespace {

constexpr int64_t kVocabulary = 32000;
constexpr size_t kTextBytes = size_t{8} << 20;
constexpr size_t kDocumentBytes = 4096;
constexpr int kRounds = 5;
constexpr char kFortunes[] = "/usr/share/games/fortunes";

double CpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Random numbers that are the same on every machine (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  size_t Below(size_t count) {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<size_t>((z ^ (z >> 31)) % count);
  }

 private:
  uint64_t state_;
};

// Text that looks like a sample, made from what follows each `order` bytes in it.
class TextMaker {
 public:
  TextMaker(const std::string& sample, size_t order, uint64_t seed)
      : sample_(sample), order_(order), random_(seed) {
    for (size_t at = order; at < sample.size(); ++at) {
      next_[absl::string_view(sample).substr(at - order, order)].push_back(
          static_cast<uint32_t>(at));
    }
  }

  std::string Make(size_t size) {
    std::string text = sample_.substr(random_.Below(sample_.size() - order_), order_);
    while (text.size() < size) {
      const auto found = next_.find(absl::string_view(text).substr(text.size() - order_));
      if (found == next_.end()) {  // the sample's own end
        text += sample_.substr(0, order_);
      } else {
        text += sample_[found->second[random_.Below(found->second.size())]];
      }
    }
    return text;
  }

 private:
  const std::string& sample_;
  const size_t order_;
  Random random_;
  absl::flat_hash_map<absl::string_view, std::vector<uint32_t>> next_;
};

absl::StatusOr<std::string> ReadAll(const std::vector<std::string>& paths) {
  std::string all, document;
  for (const std::string& path : paths) {
    const auto found = data::ListFiles(path);
    if (!found.ok()) return found.status();
    for (const std::string& file : found->files) {
      auto documents =
          data::Documents::Open(file, data::DocumentOptions{.json_field = "", .skip_bad = true});
      if (!documents.ok()) return documents.status();
      const auto more = (*documents)->Next(&document);
      if (!more.ok()) return more.status();
      if (*more) all += document;
    }
  }
  if (all.size() < kDocumentBytes) return absl::InvalidArgumentError("too little text");
  return all;
}

ByteLevelBpe Learn(const std::string& text, SplitPattern split) {
  WordCounter counter(split);
  counter.Feed(text);
  counter.Finish();
  ByteLevelBpe bpe;
  bpe.split = split;
  bpe.special_tokens = {"<|endoftext|>"};
  BpeTrainOptions options;
  options.num_tokens_max = kVocabulary - 257;
  bpe.merges = TrainBpe(counter.words(), options);
  return bpe;
}

// As the family of the split has it: Qwen2 normalises.
std::unique_ptr<Tokenizer> ByteLevel(const ByteLevelBpe& bpe) {
  auto parts = ParseTokenizerJson(WriteTokenizerJson(bpe));
  if (bpe.split == SplitPattern::kQwen2) {
    parts->normalizer.push_back({NormalizerStep::Kind::kNfc, "", ""});
  }
  return *Tokenizer::Create(*std::move(parts));
}

// As Llama 2 has it, with the merges of a byte-level one: spaces are "▁", a whole text is one
// piece, and characters that are no token become bytes.
std::unique_ptr<Tokenizer> LikeLlama2(const ByteLevelBpe& bpe) {
  constexpr char kMarker[] = "▁";
  TokenizerParts parts;
  BpeSpec& spec = parts.model;
  absl::flat_hash_map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    const auto [at, added] = ids.try_emplace(token, static_cast<int32_t>(parts.tokens.size()));
    if (added) parts.tokens.push_back(token);
    return at->second;
  };
  spec.unknown = add("<unk>");
  for (int byte = 0; byte < 256; ++byte) {
    spec.byte_fallback.push_back(add(absl::StrCat("<0x", absl::Hex(byte, absl::kZeroPad2), ">")));
  }
  const auto add_symbol = [&](const std::string& text) {
    if (ids.contains(text)) return;
    spec.symbols.emplace_back(text, add(text));
  };
  add_symbol(kMarker);
  for (char c = '!'; c <= '~'; ++c) add_symbol(std::string(1, c));
  for (const auto& [left, right] : bpe.merges) {
    const auto first = ids.find(ReplaceEach(left, " ", kMarker));
    const auto second = ids.find(ReplaceEach(right, " ", kMarker));
    if (first == ids.end() || second == ids.end()) continue;  // parts of characters, line ends
    const BpeMerge halves = {first->second, second->second, 0};
    const std::string whole = first->first + second->first;
    add_symbol(whole);
    spec.merges.push_back({halves.left, halves.right, ids.at(whole)});
  }
  spec.start = BpeStart::kCharacters;
  spec.fuse_unknown = true;
  spec.word_begin = kMarker;
  parts.normalizer = {{NormalizerStep::Kind::kPrepend, "", kMarker},
                      {NormalizerStep::Kind::kReplace, " ", kMarker}};
  return *Tokenizer::Create(std::move(parts));
}

// Encodes the text in documents. Returns the CPU seconds.
double EncodeOnce(const Tokenizer& tokenizer, absl::string_view text, int64_t* num_tokens) {
  std::vector<int32_t> ids;
  const double begin = CpuSeconds();
  for (size_t at = 0; at < text.size(); at += kDocumentBytes) {
    ids.clear();
    tokenizer.Encode(text.substr(at, kDocumentBytes), {}, &ids);
    *num_tokens += static_cast<int64_t>(ids.size());
  }
  return CpuSeconds() - begin;
}

// Prints a row. Returns its median in MB/s.
double Measure(const char* what, const Tokenizer& tokenizer,
               const std::vector<std::string>& texts) {
  std::vector<double> rates;
  int64_t num_tokens = 0;
  double num_bytes = 0;
  for (const std::string& text : texts) {
    const double seconds = EncodeOnce(tokenizer, text, &num_tokens);
    rates.push_back(static_cast<double>(text.size()) / seconds / 1e6);
    num_bytes += static_cast<double>(text.size());
  }
  std::sort(rates.begin(), rates.end());
  std::printf("  %-44s %7.1f %7.1f %10.2f\n", what, rates[rates.size() / 2], rates.front(),
              num_bytes / static_cast<double>(num_tokens));
  return rates[rates.size() / 2];
}

struct Options {
  double least = 20;  // MB/s
  std::vector<std::string> paths;
};

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "--least") {
      options.paths.push_back(words[i]);
    } else if (++i == words.size() || !absl::SimpleAtod(words[i], &options.least)) {
      return absl::InvalidArgumentError("--least: expected a number of MB/s");
    }
  }
  if (options.paths.empty()) options.paths.emplace_back(kFortunes);
  return options;
}

int Main(const Options& options) {
  const auto sample = ReadAll(options.paths);
  if (!sample.ok()) {
    std::fprintf(stderr, "tokenizer_benchmark: %s\n", sample.status().ToString().c_str());
    return 1;
  }
  std::vector<std::string> near, far;
  TextMaker near_maker(*sample, 5, 1), far_maker(*sample, 3, 2);
  for (int i = 0; i < kRounds; ++i) {
    near.push_back(near_maker.Make(kTextBytes));
    far.push_back(far_maker.Make(kTextBytes));
  }
  std::printf("%.1f MB of text; MB/s of one thread's CPU time, %d texts of %zu MiB, each once\n",
              static_cast<double>(sample->size()) / 1e6, kRounds, kTextBytes >> 20);
  std::printf("  %-44s %7s %7s %10s\n", "", "median", "least", "bytes/token");
  double slowest = std::numeric_limits<double>::infinity();
  const auto measure = [&](const Tokenizer& tokenizer) {
    const double same = Measure("the text itself", tokenizer, {*sample});
    const double other = Measure("new text, five bytes decide the next", tokenizer, near);
    Measure("new text, three bytes decide the next", tokenizer, far);
    slowest = std::min({slowest, same, other});
  };
  for (const auto split : {SplitPattern::kLlama3, SplitPattern::kQwen2, SplitPattern::kGpt2}) {
    const double begin = CpuSeconds();
    const ByteLevelBpe bpe = Learn(*sample, split);
    const auto tokenizer = ByteLevel(bpe);
    std::printf("split as %s: %d tokens learnt in %.1f s\n", std::string(NameOf(split)).c_str(),
                tokenizer->vocabulary_size(), CpuSeconds() - begin);
    measure(*tokenizer);
    if (split != SplitPattern::kGpt2) continue;
    const auto like_llama2 = LikeLlama2(bpe);
    std::printf("as Llama 2, with %d tokens of those\n", like_llama2->vocabulary_size());
    measure(*like_llama2);
  }
  if (slowest >= options.least) return 0;
  std::printf("FAILED: %.1f MB/s, expected at least %.1f\n", slowest, options.least);
  return 1;
}

}  // namespace
}  // namespace megascale::tokenizer

int main(int argc, char** argv) {
  const auto options = megascale::tokenizer::ParseOptions({argv + 1, argv + argc});
  if (!options.ok()) {
    std::fprintf(stderr, "tokenizer_benchmark: %s\n", options.status().ToString().c_str());
    return 2;
  }
  return megascale::tokenizer::Main(*options);
}
