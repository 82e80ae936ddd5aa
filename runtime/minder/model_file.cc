#include "runtime/minder/model_file.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/minder/default_models.h"
#include "runtime/minder/recording.h"

namespace megascale::minder {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMetricsMax = 64;
constexpr size_t kMadeByBytesMax = 1000;

absl::Status Malformed(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed models: ", why, "; make them with `megascale minder train`"));
}

// As FormatModels writes it and ParseModels reads it again: -0 is read as the integer 0.
double WithoutNegativeZero(double number) { return number + 0.0; }

absl::StatusOr<double> NumberOf(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number() || !std::isfinite(found->get<double>())) {
    return Malformed(absl::StrCat("'", name, "' is no number"));
  }
  return WithoutNegativeZero(found->get<double>());
}

absl::StatusOr<MetricModel> ParseMetric(const json& object) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string()) {
    return Malformed("a metric has no name");
  }
  const std::string name = object["name"].get<std::string>();
  if (!IsName(name)) return Malformed("a metric's name is empty, long or not printable");
  const auto weights = object.find("weights");
  if (weights == object.end() || !weights->is_array()) {
    return Malformed(absl::StrCat("metric '", name, "' has no weights"));
  }
  std::vector<double> values;
  for (const json& weight : *weights) {
    if (!weight.is_number()) {
      return Malformed(absl::StrCat("metric '", name, "' has a weight that is no number"));
    }
    values.push_back(WithoutNegativeZero(weight.get<double>()));
  }
  Limits limits;
  ASSIGN_OR_RETURN(limits.lower, NumberOf(object, "lower"));
  ASSIGN_OR_RETURN(limits.upper, NumberOf(object, "upper"));
  if (!(limits.lower < limits.upper)) {
    return Malformed(absl::StrCat("metric '", name, "': expected lower < upper"));
  }
  auto model = LstmVae::FromWeights(std::move(values));
  if (!model.ok()) {
    return base::Annotate(model.status(), absl::StrCat("metric '", name, "'"));
  }
  const auto open = object.find("has_open_limit");
  const bool has_open_limit = open != object.end() && open->is_boolean() && open->get<bool>();
  return MetricModel{name, limits, has_open_limit, *std::move(model)};
}

}  // namespace

absl::StatusOr<MinderModels> ParseModels(absl::string_view text) {
  RETURN_IF_ERROR(base::CheckJsonNesting(text));
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return Malformed("no JSON object");
  if (object.value("format", json()) != json(kFormat)) {
    return Malformed(absl::StrCat("expected \"format\": ", kFormat));
  }
  const auto metrics = object.find("metrics");
  if (metrics == object.end() || !metrics->is_array() || metrics->empty() ||
      metrics->size() > kMetricsMax) {
    return Malformed(absl::StrCat("expected 1 to ", kMetricsMax, " metrics"));
  }
  MinderModels models;
  const auto made_by = object.find("made_by");
  if (made_by != object.end() && made_by->is_string()) {
    models.made_by = base::Printable(made_by->get<std::string>(), kMadeByBytesMax);
  }
  for (const json& metric : *metrics) {
    ASSIGN_OR_RETURN(MetricModel parsed, ParseMetric(metric));
    models.metrics.push_back(std::move(parsed));
  }
  return models;
}

std::string FormatModels(const MinderModels& models) {
  std::string text =
      absl::StrCat("{\"format\": ", kFormat, ",\n \"made_by\": ", json(models.made_by).dump(),
                   ",\n \"metrics\": [");
  const char* separator = "\n";
  for (const MetricModel& metric : models.metrics) {
    absl::StrAppend(&text, separator, "  {\"name\": ", json(metric.name).dump());
    absl::StrAppendFormat(&text, ", \"lower\": %s, \"upper\": %s, \"has_open_limit\": %s,\n",
                          json(metric.limits.lower).dump(), json(metric.limits.upper).dump(),
                          metric.has_open_limit ? "true" : "false");
    absl::StrAppend(&text, "   \"weights\": [");
    for (size_t i = 0; i < metric.model.weights().size(); ++i) {
      absl::StrAppendFormat(&text, "%s%.6g",
                            i == 0        ? ""
                            : i % 12 == 0 ? ",\n    "
                                          : ", ",
                            metric.model.weights()[i]);
    }
    absl::StrAppend(&text, "]}");
    separator = ",\n";
  }
  return absl::StrCat(text, "\n]}\n");
}

const MinderModels& DefaultModels() {
  static const MinderModels* const models = [] {
    const EmbeddedFile& file = EmbeddedFiles()[0];
    absl::StatusOr<MinderModels> parsed = ParseModels({file.data, file.size_bytes});
    MEGASCALE_CHECK(parsed.ok());
    return new MinderModels(*std::move(parsed));
  }();
  return *models;
}

}  // namespace megascale::minder
