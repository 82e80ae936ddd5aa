#include "runtime/hugging_face/config/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/text/printable.h"

namespace megascale::hugging_face {
namespace {

using Json = nlohmann::json;

std::string ValueText(const Json& value) {
  if (value.is_structured()) return absl::StrCat("an ", value.type_name());  // array or object
  return base::Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace),
                         kShownBytesMax);
}

}  // namespace

const Json* JsonFields::Find(absl::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Refuse(absl::string_view name, absl::string_view expected) {
  if (!status_.ok()) return;
  const Json* value = Find(name);
  const std::string shown = value == nullptr ? "missing" : ValueText(*value);
  status_ = absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", prefix_, name, " is ", shown, ": expected ", expected));
}

void JsonFields::Keep(const absl::Status& mistake) {
  if (status_.ok()) status_ = mistake;
}

bool JsonFields::IsNull(absl::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found != object_.end() && found->is_null();
}

bool JsonFields::Has(absl::string_view name) const { return Find(name) != nullptr; }

int32_t JsonFields::Size(absl::string_view name, std::optional<int32_t> otherwise) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const Json* value = Find(name);
  if (value == nullptr && otherwise.has_value()) return *otherwise;
  if (value != nullptr && value->is_number_unsigned()) {
    const auto number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(kMost)) return static_cast<int32_t>(number);
  }
  Refuse(name, absl::StrCat("a whole number from 1 to ", kMost));
  return 1;
}

double JsonFields::Number(absl::string_view name, double otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  Refuse(name, "a number");
  return otherwise;
}

bool JsonFields::Flag(absl::string_view name, bool otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(name, "true or false");
  return otherwise;
}

std::string JsonFields::Text(absl::string_view name, absl::string_view otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return std::string(otherwise);
  if (value->is_string()) return value->get<std::string>();
  Refuse(name, "a text");
  return std::string(otherwise);
}

std::vector<std::string> JsonFields::Texts(absl::string_view name) {
  const Json* value = Find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  const bool is_list =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& one) { return one.is_string(); });
  if (!is_list) {
    Refuse(name, "a list of texts");
    return texts;
  }
  for (const Json& one : *value) texts.push_back(one.get<std::string>());
  return texts;
}

const Json* JsonFields::Object(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  Refuse(name, "an object");
  return nullptr;
}

}  // namespace megascale::hugging_face
