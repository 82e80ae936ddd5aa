#include "runtime/data/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace megascale::tokenizer
