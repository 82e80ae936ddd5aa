#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/bpe/bpe_model.h"
#include "runtime/data/tokenizer/bpe/bpe_trainer.h"
#include "runtime/data/tokenizer/text/byte_alphabet.h"

namespace megascale::tokenizer {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Encode(const BpeModel& model, absl::string_view text) {
  std::vector<int32_t> ids;
  model.Encode(text, &ids);
  return ids;
}

// "a" 0, "b" 1, "ab" 2, "aba" 3, "abab" 4; merges a+b, ab+ab, ab+a.
BpeSpec SmallSpec() {
  BpeSpec spec;
  spec.symbols = {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}, {"abab", 4}};
  spec.merges = {{0, 1, 2}, {2, 2, 4}, {2, 0, 3}};
  return spec;
}

TEST(WordTableTest, FindsWordsOfEveryLength) {
  WordTable table;
  EXPECT_EQ(table.Find("a"), WordTable::kAbsent);
  table.Reserve(200);
  std::string word;
  for (int32_t id = 0; id < 100; ++id) {
    table.Insert(word, id);
    table.Insert(word + "x", id + 100);
    word += static_cast<char>(id);
  }
  word.clear();
  for (int32_t id = 0; id < 100; ++id) {
    EXPECT_EQ(table.Find(word), id);
    EXPECT_EQ(table.Find(word + "x"), id + 100);
    EXPECT_EQ(table.Find(word + "y"), WordTable::kAbsent);
    word += static_cast<char>(id);
  }
}

TEST(MergeTableTest, OfTwoMergesOfOnePairTheLaterOneCounts) {
  const MergeTable table({{1, 2, 3}, {4, 5, 6}, {1, 2, 7}});
  EXPECT_EQ(table.Find(1, 2).rank, 2u);
  EXPECT_EQ(table.Find(1, 2).result, 7);
  EXPECT_EQ(table.Find(4, 5).rank, 1u);
  EXPECT_EQ(table.Find(2, 1).rank, MergeTable::kNoRank);
}

TEST(BpeModelTest, MergesTheLowestRankFirstAndTheLeftmostOfThem) {
  const BpeModel model(SmallSpec());
  EXPECT_THAT(Encode(model, "ababa"), ElementsAre(4, 0));
  EXPECT_THAT(Encode(model, "aba"), ElementsAre(3));
  EXPECT_THAT(Encode(model, "abababab"), ElementsAre(4, 4));
  EXPECT_THAT(Encode(model, "bbaa"), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
}

// Long pieces take another way: the beginning of a long piece must be what it is in a short one.
TEST(BpeModelTest, LongPiecesAreMergedAsShortOnes) {
  const BpeModel model(SmallSpec());
  for (const std::string& unit : {std::string("abab"), std::string("ab"), std::string("abbab")}) {
    for (int repeats = 1; repeats < 40; ++repeats) {
      std::string text;
      std::vector<int32_t> expected;
      for (int i = 0; i < repeats; ++i) text += unit + "b";
      for (int i = 0; i < repeats; ++i) {
        for (const int32_t id : Encode(model, unit + "b")) expected.push_back(id);
      }
      EXPECT_EQ(Encode(model, text), expected) << text;
    }
  }
}

TEST(BpeModelTest, ATokenThatNoMergeReachesNeedsIgnoreMerges) {
  BpeSpec spec = SmallSpec();
  spec.symbols.emplace_back("ba", 5);
  EXPECT_THAT(Encode(BpeModel(spec), "ba"), ElementsAre(1, 0));
  spec.ignore_merges = true;
  EXPECT_THAT(Encode(BpeModel(spec), "ba"), ElementsAre(5));
}

TEST(BpeModelTest, WordsAreCutOnlyIfNoMergeReachesOverTheCut) {
  BpeSpec spec;
  spec.symbols = {{"▁", 0}, {"a", 1}, {"▁a", 2}, {"▁▁", 3}};
  spec.merges = {{0, 1, 2}, {0, 0, 3}};
  spec.start = BpeStart::kCharacters;
  spec.word_begin = "▁";
  EXPECT_TRUE(BpeModel(spec).cuts_words());
  EXPECT_THAT(Encode(BpeModel(spec), "▁a▁a▁▁▁a"), ElementsAre(2, 2, 3, 2));
  spec.symbols.emplace_back("a▁", 4);
  EXPECT_TRUE(BpeModel(spec).cuts_words());
  spec.merges.push_back({1, 0, 4});
  EXPECT_FALSE(BpeModel(spec).cuts_words());
}

// The definition: of all neighbours that a merge joins, the first one of the lowest rank.
std::vector<int32_t> MergeAll(const BpeSpec& spec, std::vector<int32_t> ids) {
  for (;;) {
    size_t best = spec.merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (spec.merges[rank].left != ids[at] || spec.merges[rank].right != ids[at + 1]) continue;
        best = rank;
        best_at = at;
      }
    }
    if (best == spec.merges.size()) return ids;
    ids[best_at] = spec.merges[best].result;
    ids.erase(ids.begin() + static_cast<int64_t>(best_at) + 1);
  }
}

TEST(BpeModelTest, TextIsCutOnlyBetweenCharactersThatNoMergeJoins) {
  const std::vector<std::string> characters = {"▁", "a", "b", ",", ".", "é"};
  std::mt19937 random(7);
  const auto below = [&](size_t count) { return random() % count; };
  for (int round = 0; round < 300; ++round) {
    BpeSpec spec;
    spec.start = BpeStart::kCharacters;
    spec.word_begin = "▁";
    for (const std::string& text : characters) {
      spec.symbols.emplace_back(text, static_cast<int32_t>(spec.symbols.size()));
    }
    while (spec.symbols.size() < 16) {
      const auto left = static_cast<int32_t>(below(spec.symbols.size()));
      const auto right = static_cast<int32_t>(1 + below(spec.symbols.size() - 1));
      const auto result = static_cast<int32_t>(spec.symbols.size());
      const std::string text = spec.symbols[left].first + spec.symbols[right].first;
      const auto is_text = [&](const auto& symbol) { return symbol.first == text; };
      if (std::any_of(spec.symbols.begin(), spec.symbols.end(), is_text)) continue;
      spec.symbols.emplace_back(text, result);
      spec.merges.push_back({left, right, result});
    }
    for (int32_t byte = 0; round % 2 == 1 && byte < 256; ++byte) {
      spec.byte_fallback.push_back(100 + byte);
    }
    if (round % 4 == 3) {  // a merge with a byte
      spec.symbols.emplace_back("<0x0A>", 110);
      spec.symbols.emplace_back("a<0x0A>", 16);
      spec.merges.push_back({1, 110, 16});
    }
    const BpeModel model(spec);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      std::vector<int32_t> ids;
      for (size_t length = below(30); length > 0; --length) {
        const size_t at = below(characters.size() + 1);
        text += at < characters.size() ? characters[at] : "\n";
        if (at < characters.size()) {
          ids.push_back(static_cast<int32_t>(at));
        } else if (!spec.byte_fallback.empty()) {
          ids.push_back(110);
        }
      }
      EXPECT_EQ(Encode(model, text), MergeAll(spec, ids)) << "round " << round << ": " << text;
    }
  }
}

// A token's text that is not that of its halves says nothing of what merges join.
TEST(BpeModelTest, NothingIsCutWhereTextsAreNotThoseOfTheirHalves) {
  BpeSpec spec;
  spec.symbols = {{"▁", 0}, {"a", 1}, {",", 2}, {"c", 3}, {"x", 4}};
  spec.merges = {{1, 2, 3}, {3, 2, 4}};
  spec.start = BpeStart::kCharacters;
  spec.word_begin = "▁";
  EXPECT_THAT(Encode(BpeModel(spec), "a,,"), ElementsAre(4));
}

TEST(BpeModelTest, AnUnknownCharacterIsLeftOutOrReplacedOrFused) {
  BpeSpec spec;
  spec.symbols = {{"a", 0}, {"<unk>", 1}};
  spec.start = BpeStart::kCharacters;
  EXPECT_THAT(Encode(BpeModel(spec), "éaéé"), ElementsAre(0));
  spec.unknown = 1;
  EXPECT_THAT(Encode(BpeModel(spec), "éaéé"), ElementsAre(1, 0, 1, 1));
  spec.fuse_unknown = true;
  EXPECT_THAT(Encode(BpeModel(spec), "éaéé"), ElementsAre(1, 0, 1));
}

// What the definition does in the square of the text, one merge of the first pair at a time.
TEST(BpeModelTest, TheWorkOfAPieceGrowsAsThePiece) {
  BpeSpec powers;  // "a", "aa", "aaaa", …
  std::string token = "a";
  for (int32_t id = 0; id < 14; ++id, token += token) {
    powers.symbols.emplace_back(token, id);
    if (id > 0) powers.merges.push_back({id - 1, id - 1, id});
  }
  BpeSpec chain;  // each merge takes in one letter more, so every one waits for the one before it
  chain.symbols = {{"a", 0}, {"b", 1}};
  token = "b";
  for (int32_t id = 2; id < 2000; ++id) {
    token += "a";
    chain.symbols.emplace_back(token, id);
    chain.merges.push_back({id - 1, 0, id});
  }
  BpeSpec words = powers;
  words.start = BpeStart::kCharacters;
  words.word_begin = "▁";
  words.symbols.emplace_back("▁", 50);
  words.byte_fallback.assign(256, 60);
  constexpr size_t kSize = 1 << 14;
  for (const BpeSpec& spec : {powers, chain, words, SmallSpec()}) {
    const BpeModel model(spec);
    for (const std::string unit : {"a", "ab", "b", "aaaaaaaab", "▁", "▁a", "ab\n", "é"}) {
      const auto work = [&](size_t size) {
        std::string text;
        while (text.size() < size) text += unit;
        return base::WorkOf([&] { Encode(model, text); });
      };
      const std::string chained = "b" + std::string(kSize, 'a');
      EXPECT_GE(work(kSize), static_cast<int64_t>(kSize));
      EXPECT_LE(work(2 * kSize), work(kSize) * 5 / 2) << unit;
      EXPECT_LE(base::WorkOf([&] { Encode(model, chained + chained); }),
                base::WorkOf([&] { Encode(model, chained); }) * 5 / 2);
    }
  }
}

std::string Golden(const std::string& name) {
  const auto text = base::ReadFile(
      absl::StrCat(::getenv("TEST_SRCDIR"), "/megascale/tests/golden/tokenizer/", name), 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return *text;
}

WordCounter::Words CountWords(SplitPattern pattern, absl::string_view text, size_t block) {
  WordCounter counter(pattern);
  for (; !text.empty(); text.remove_prefix(std::min(block, text.size()))) {
    counter.Feed(text.substr(0, block));
  }
  counter.Finish();
  return counter.words();
}

// Files have a merge as a list of two tokens, or as one string.
std::string PairText(const nlohmann::json& merge) {
  return merge.is_string()
             ? merge.get<std::string>()
             : absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>());
}

TEST(BpeTrainerTest, LearnsTheMergesOfTheReference) {
  const std::string text = Golden("train.txt");
  for (const auto& [name, split] : {std::make_pair("gpt2.json", SplitPattern::kGpt2),
                                    std::make_pair("llama3-plain.json", SplitPattern::kLlama3),
                                    std::make_pair("qwen2.json", SplitPattern::kQwen2)}) {
    const auto expected = nlohmann::json::parse(Golden(name))["model"]["merges"];
    BpeTrainOptions options;
    options.num_tokens_max = static_cast<int64_t>(expected.size());
    const auto merges = TrainBpe(CountWords(split, text, text.size()), options);
    ASSERT_GT(merges.size(), 400u);
    ASSERT_EQ(merges.size(), expected.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      ASSERT_EQ(absl::StrCat(TokenOfBytes(merges[i].first), " ", TokenOfBytes(merges[i].second)),
                PairText(expected[i]))
          << name << " " << i;
    }
  }
}

TEST(BpeTrainerTest, WordsDoNotDependOnTheBlocksOfTheText) {
  const std::string text = Golden("train.txt") + "\xFF\xC3";
  for (const auto split : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    const auto whole = CountWords(split, text, text.size());
    for (const size_t block : {1u, 7u, 4096u}) EXPECT_EQ(CountWords(split, text, block), whole);
  }
}

TEST(BpeTrainerTest, TheWorkOfCountingGrowsAsTheTextThatArrivesInBlocks) {
  const auto work = [](const std::string& unit, size_t size) {
    std::string text;
    while (text.size() < size) text += unit;
    return base::WorkOf([&] { CountWords(SplitPattern::kGpt2, text, 512); });
  };
  constexpr size_t kSize = 1 << 18;
  for (const std::string unit : {"x", " ", "\n", "ab cd ", "1 a", "é", "\xC3"}) {
    EXPECT_GE(work(unit, kSize), static_cast<int64_t>(kSize));
    EXPECT_LE(work(unit, 2 * kSize), work(unit, kSize) * 5 / 2) << unit;
  }
}

TEST(BpeTrainerTest, PairsThatAreTooRareAreNotMerged) {
  BpeTrainOptions options;
  options.num_tokens_max = 100;
  options.min_frequency = 3;
  const WordCounter::Words words = {{"ab", 2}, {"abc", 1}, {"xy", 2}};
  EXPECT_THAT(TrainBpe(words, options), ElementsAre(std::make_pair("a", "b")));
  options.num_tokens_max = 0;
  EXPECT_THAT(TrainBpe(words, options), ElementsAre());
}

}  // namespace
}  // namespace megascale::tokenizer
