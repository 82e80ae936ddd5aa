#include "runtime/machine/exchange_verdict.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/process/resource_limit.h"

namespace megascale::machine {

namespace control = megascale::control::v1;

std::string RateText(double bytes_per_second) {
  return absl::StrCat(base::FormatBytes(static_cast<int64_t>(bytes_per_second)), "/s");
}

std::string WhyFailed(const control::ExchangeResult& result) {
  if (!result.note().empty()) return "";
  if (!result.failure().empty()) return result.failure();
  if (result.bytes_per_second() >= result.rate_min()) return "";
  return absl::StrCat("reached ", RateText(result.bytes_per_second()), ", expected at least ",
                      RateText(result.rate_min()));
}

ExchangeVerdict Judge(const control::ExchangeResult& result) {
  if (!result.note().empty()) return ExchangeVerdict::kUnknown;
  return WhyFailed(result).empty() ? ExchangeVerdict::kPassed : ExchangeVerdict::kFailed;
}

const control::ExchangeResult* WorstExchange(
    const google::protobuf::RepeatedPtrField<control::ExchangeResult>& results) {
  const control::ExchangeResult* worst = nullptr;
  const auto goodness = [](const control::ExchangeResult& result) {
    const ExchangeVerdict verdict = Judge(result);
    return std::pair(verdict == ExchangeVerdict::kFailed   ? 0
                     : verdict == ExchangeVerdict::kPassed ? 1
                                                           : 2,
                     result.bytes_per_second());
  };
  for (const control::ExchangeResult& result : results) {
    if (worst == nullptr || goodness(result) < goodness(*worst)) worst = &result;
  }
  return worst;
}

}  // namespace megascale::machine
