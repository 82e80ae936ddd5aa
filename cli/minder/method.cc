#include "cli/minder/method.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megascale::cli {
namespace {

struct Method {
  const char* word;
  minder::DetectorOptions options;
};

const std::vector<Method>& Methods() {
  using minder::Distance;
  using minder::Embedding;
  static const auto* const methods =
      new std::vector<Method>{{"minder", {}},
                              {"raw", {.embedding = Embedding::kRaw}},
                              {"concatenated", {.embedding = Embedding::kAllConcatenated}},
                              {"one-model", {.embedding = Embedding::kOneModel}},
                              {"mahalanobis", {.distance = Distance::kMahalanobis}},
                              {"no-continuity", {.needs_continuity = false}},
                              {"one-candidate", {.has_one_candidate = true}}};
  return *methods;
}

}  // namespace

std::vector<std::string> MinderMethods() {
  std::vector<std::string> words;
  for (const Method& method : Methods()) words.emplace_back(method.word);
  return words;
}

absl::StatusOr<minder::DetectorOptions> OptionsOfMethod(absl::string_view method) {
  const auto found = std::find_if(Methods().begin(), Methods().end(),
                                  [&](const Method& known) { return known.word == method; });
  if (found != Methods().end()) return found->options;
  return absl::InvalidArgumentError(absl::StrCat("--method: unknown method '", method,
                                                 "'; expected one of ",
                                                 absl::StrJoin(MinderMethods(), ", ")));
}

}  // namespace megascale::cli
