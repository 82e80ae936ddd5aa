// The rules of a data section's tokenizer and weights.
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/field_checks.h"
#include "runtime/job/job_rules.h"
#include "runtime/job/names.h"

namespace megascale::job {
namespace {

constexpr size_t kTextBytesMax = 256;
constexpr double kWeightMin = 1e-6;
constexpr double kWeightMax = 1e6;
constexpr size_t kWeightBytesShown = 20;

absl::Status CheckText(absl::string_view field, const std::string& text) {
  if (base::IsUtf8(text) && text.size() <= kTextBytesMax) return absl::OkStatus();
  return Refuse(field, absl::StrCat("expected at most ", kTextBytesMax, " bytes of UTF-8"));
}

absl::Status CheckWeights(const v1::DataSpec& data) {
  if (data.weights().empty()) return absl::OkStatus();
  if (data.weights_size() != data.files_size()) {
    return Refuse("data.weights",
                  absl::StrCat("has ", data.weights_size(), " entries, data.files has ",
                               data.files_size(), "; expected one weight for each"));
  }
  for (const std::string& text : data.weights()) {
    double weight = 0;
    const bool known = absl::SimpleAtod(text, &weight) && std::isfinite(weight);
    if (known && weight >= kWeightMin && weight <= kWeightMax) continue;
    return Refuse("data.weights",
                  absl::StrCat("found '", base::Printable(text, kWeightBytesShown),
                               "', expected numbers of ", kWeightMin, " to ", kWeightMax));
  }
  return absl::OkStatus();
}

// Refuses what has no meaning where every byte is a token.
absl::Status CheckBytes(const v1::DataSpec& data) {
  for (const auto& [field, is_set] :
       {std::pair{"data.json_field", !data.json_field().empty()},
        {"data.end_token", !data.end_token().empty()},
        {"data.skip_bad", data.skip_bad()},
        {"data.attention: within_documents", data.attention() == v1::ATTENTION_WITHIN_DOCUMENTS}}) {
    if (!is_set) continue;
    return Refuse(field,
                  "needs a tokenizer, and without one every byte of a file is a token; name one in "
                  "data.tokenizer, or let one be learnt by data.tokenizer_vocab_size");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTokens(const v1::DataSpec& data) {
  RETURN_IF_ERROR(CheckWeights(data));
  RETURN_IF_ERROR(CheckText("data.json_field", data.json_field()));
  RETURN_IF_ERROR(CheckText("data.end_token", data.end_token()));
  if (!v1::Attention_IsValid(data.attention())) {
    return Refuse("data.attention", absl::StrCat(static_cast<int>(data.attention()),
                                                 " is unknown to this version; expected "
                                                 "across_documents or within_documents"));
  }
  if (!data.token_cache().empty()) {
    RETURN_IF_ERROR(CheckPath("data.token_cache", data.token_cache()));
  }
  const int learnt = data.tokenizer_vocab_size();
  if (learnt != 0 && !data.tokenizer().empty()) {
    return Refuse("data.tokenizer_vocab_size",
                  "learns a tokenizer, but data.tokenizer names one; expected one of the two");
  }
  if (learnt != 0 && (learnt < kLearntVocabularyMin || learnt > kLearntVocabularyMax)) {
    return Refuse("data.tokenizer_vocab_size",
                  absl::StrCat(learnt, " is out of range; expected ", kLearntVocabularyMin, " to ",
                               kLearntVocabularyMax));
  }
  if (learnt != 0) return absl::OkStatus();
  if (data.tokenizer().empty() || data.tokenizer() == "bytes") return CheckBytes(data);
  return CheckPath("data.tokenizer", data.tokenizer());
}

}  // namespace megascale::job
