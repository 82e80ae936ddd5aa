#include "runtime/data/tokenizer/files/json_object.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kShownNameBytesMax = 100;

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  base::CountWork(text.size());
  RETURN_IF_ERROR(base::CheckJsonNesting(text));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    const auto* mistake = dynamic_cast<const Json::parse_error*>(&error);
    return absl::InvalidArgumentError(absl::StrCat("is not JSON: mistake at byte ",
                                                   mistake == nullptr ? 0 : mistake->byte, " of ",
                                                   text.size()));
  }
}

absl::Status WrongType(absl::string_view path, const Json* value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": is ", value == nullptr ? "absent" : value->type_name(), ", expected ", expected));
}

absl::StatusOr<int32_t> IdOfJson(const Json& value, absl::string_view path) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
  if (!fits) return WrongType(path, &value, "an integer from 0 to 2147483647");
  return static_cast<int32_t>(value.get<uint64_t>());
}

absl::StatusOr<JsonObject> JsonObject::Of(const Json& value, std::string path) {
  if (!value.is_object()) return WrongType(path.empty() ? "the file" : path, &value, "an object");
  return JsonObject(&value, std::move(path));
}

std::string JsonObject::PathOf(absl::string_view name) const {
  const std::string shown = base::Printable(name, kShownNameBytesMax);
  return path_.empty() ? shown : absl::StrCat(path_, ".", shown);
}

const Json* JsonObject::Find(absl::string_view name) const {
  base::CountWork(1);
  const auto found = value_->find(std::string(name));
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<JsonObject> JsonObject::Object(absl::string_view name) const {
  const Json* value = Find(name);
  if (value == nullptr) return WrongType(PathOf(name), value, "an object");
  return Of(*value, PathOf(name));
}

absl::StatusOr<const Json*> JsonObject::Array(absl::string_view name) const {
  const Json* value = Find(name);
  if (value == nullptr || !value->is_array()) return WrongType(PathOf(name), value, "an array");
  return value;
}

absl::StatusOr<std::string> JsonObject::Text(absl::string_view name) const {
  const Json* value = Find(name);
  if (value == nullptr || !value->is_string()) return WrongType(PathOf(name), value, "a string");
  return value->get<std::string>();
}

absl::StatusOr<bool> JsonObject::Bool(absl::string_view name, bool if_absent) const {
  const Json* value = Find(name);
  if (value == nullptr) return if_absent;
  if (!value->is_boolean()) return WrongType(PathOf(name), value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<int32_t> JsonObject::Integer(absl::string_view name) const {
  const Json* value = Find(name);
  if (value == nullptr) return WrongType(PathOf(name), value, "an integer");
  return IdOfJson(*value, PathOf(name));
}

}  // namespace megascale::tokenizer
