#include "runtime/data/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::tokenizer {
namespace {

using ::testing::ElementsAre;

// The parts of a text, as "text" or "text=id".
std::vector<std::string> PartsOf(const AddedTokenFinder& finder, absl::string_view text) {
  std::vector<std::string> parts;
  finder.Split(text, /*skip_special=*/false, [&](const AddedTokenFinder::Part& part) {
    parts.push_back(part.id < 0 ? std::string(part.text) : absl::StrCat(part.text, "=", part.id));
  });
  return parts;
}

AddedTokenFinder Finder(const std::string& text, bool lstrip, bool rstrip) {
  return AddedTokenFinder({{text, {.id = 7, .content = text, .lstrip = lstrip, .rstrip = rstrip}}});
}

TEST(AddedTokensTest, TakeTheSpacesBesideThem) {
  EXPECT_THAT(PartsOf(Finder("<m>", true, false), "a  <m> <m>b"),
              ElementsAre("a", "  <m>=7", " <m>=7", "b"));
  EXPECT_THAT(PartsOf(Finder("<m>", false, true), "a  <m> <m>b"),
              ElementsAre("a  ", "<m> =7", "<m>=7", "b"));
  EXPECT_THAT(PartsOf(Finder("<m>", true, true), " <m>  <m> "), ElementsAre(" <m>  =7", "<m> =7"));
}

// Each of these finds as many matches as the text has bytes, or as it has runs of spaces.
TEST(AddedTokensTest, TheWorkGrowsAsTheText) {
  const auto repeat = [](const std::string& text, size_t size) {
    std::string all;
    while (all.size() < size) all += text;
    return all;
  };
  constexpr size_t kSize = 4096;
  for (const bool lstrip : {false, true}) {
    for (const bool rstrip : {false, true}) {
      for (const std::string token : {"\n", " ", "<m>"}) {
        for (const std::string piece : {"\n", " ", "\n ", "  <m>  ", "a \n"}) {
          const AddedTokenFinder finder = Finder(token, lstrip, rstrip);
          const auto work = [&](size_t size) {
            return base::WorkOf([&] { PartsOf(finder, repeat(piece, size)); });
          };
          EXPECT_LE(work(2 * kSize), 2 * work(kSize) + 100)
              << lstrip << rstrip << " '" << token << "' in '" << piece << "'";
        }
      }
    }
  }
}

AddedTokenFinder FinderOf(const std::vector<std::string>& texts) {
  std::vector<AddedTokenFinder::Pattern> patterns;
  for (const std::string& text : texts) {
    const auto id = static_cast<int32_t>(patterns.size());
    patterns.push_back({text, {.id = id, .content = text}});
  }
  return AddedTokenFinder(std::move(patterns));
}

// The definition: at each place the longest text, of equal ones the first.
std::vector<std::string> PartsByDefinition(const std::vector<std::string>& texts,
                                           absl::string_view text) {
  std::vector<std::string> parts;
  std::string between;
  while (!text.empty()) {
    size_t best = texts.size();
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!absl::StartsWith(text, texts[i])) continue;
      if (best == texts.size() || texts[i].size() > texts[best].size()) best = i;
    }
    if (best == texts.size()) {
      between += text[0];
      text.remove_prefix(1);
      continue;
    }
    if (!between.empty()) parts.push_back(std::exchange(between, ""));
    parts.push_back(absl::StrCat(texts[best], "=", best));
    text.remove_prefix(texts[best].size());
  }
  if (!between.empty()) parts.push_back(between);
  return parts;
}

TEST(AddedTokensTest, TheLongestOneOfEachPlaceIsFoundWhicheverWayItIsLookedFor) {
  std::mt19937 random(5);
  const auto letters = [&](size_t size_max) {
    std::string text;
    for (size_t size = 1 + random() % size_max; size > 0; --size) text += "ab"[random() % 8 == 0];
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> texts;
    for (size_t count = 1 + random() % 6; count > 0; --count) texts.push_back(letters(40));
    texts.push_back(texts[0]);
    const std::string text = letters(300);
    EXPECT_THAT(PartsOf(FinderOf(texts), text),
                ::testing::ElementsAreArray(PartsByDefinition(texts, text)))
        << text;
    const auto matches = LongestMatches(texts).Find(text);
    size_t index = 0;
    for (size_t at = text.size(); at-- > 0;) {
      const auto parts = PartsByDefinition(texts, absl::string_view(text).substr(at));
      if (!absl::StrContains(parts[0], '=')) continue;
      ASSERT_LT(index, matches.size());
      EXPECT_EQ(matches[index].begin, at);
      EXPECT_EQ(absl::StrCat(texts[matches[index].pattern], "=", matches[index].pattern), parts[0]);
      ++index;
    }
    EXPECT_EQ(index, matches.size());
  }
}

// Every place of the text begins as a long token does, which only the token's end refutes.
TEST(AddedTokensTest, TheWorkGrowsAsTheTextAndTheTokensTogether) {
  constexpr size_t kSize = 1 << 14;
  const auto work = [](const std::vector<std::string>& texts, const std::string& text) {
    return base::WorkOf([&] { PartsOf(FinderOf(texts), text); });
  };
  using Texts = std::vector<std::string>;
  const std::function<int64_t(size_t)> worst[] = {
      [&](size_t size) { return work(Texts{std::string(size, 'a')}, std::string(size - 1, 'a')); },
      [&](size_t size) {
        return work(Texts{std::string(size, 'a') + "b"}, std::string(2 * size, 'a'));
      },
      [&](size_t size) {
        return work(Texts{"a", std::string(size, 'a') + "b"}, std::string(2 * size, 'a'));
      },
      [&](size_t size) {
        return work(Texts{"b", "b" + std::string(size, 'a'), std::string(size, 'a') + "b"},
                    std::string(size - 1, 'a') + "c" + std::string(size - 1, 'a'));
      },
  };
  for (const auto& work_of : worst) {
    const int64_t before = work_of(kSize);
    EXPECT_GE(before, static_cast<int64_t>(kSize));
    EXPECT_LE(work_of(2 * kSize), before * 5 / 2) << &work_of - worst;
  }
}

}  // namespace
}  // namespace megascale::tokenizer
