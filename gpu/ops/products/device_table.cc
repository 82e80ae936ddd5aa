#include "gpu/ops/products/device_table.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::gpu {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Wrong(absl::string_view key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" ", what));
}

absl::StatusOr<std::string> TextIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return Wrong(key, "is missing");
  if (!found->is_string() || found->get<std::string>().empty()) return Wrong(key, "is no text");
  return found->get<std::string>();
}

absl::StatusOr<uint64_t> NumberIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return Wrong(key, "is missing");
  if (!found->is_number_unsigned()) return Wrong(key, "is no whole number");
  return found->get<uint64_t>();
}

std::string DescribePlace(const ProductPlace& place) {
  return absl::StrCat(place.device, " with cuBLASLt ", place.library_version, " and ",
                      place.workspace_bytes >> 20, " MiB of workspace");
}

}  // namespace

absl::StatusOr<DeviceTable> ParseDeviceTable(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError("it is no JSON object");
  }
  DeviceTable made;
  ASSIGN_OR_RETURN(made.place.device, TextIn(json, "device"));
  ASSIGN_OR_RETURN(made.place.library_version, NumberIn(json, "cublas_lt"));
  ASSIGN_OR_RETURN(made.place.workspace_bytes, NumberIn(json, "workspace_bytes"));
  ASSIGN_OR_RETURN(const std::string driver, TextIn(json, "driver"));
  ASSIGN_OR_RETURN(const std::string date, TextIn(json, "date"));
  ASSIGN_OR_RETURN(const std::string commit, TextIn(json, "commit"));
  const auto table = json.find("table");
  if (table == json.end()) return Wrong("table", "is missing");
  ASSIGN_OR_RETURN(made.table, AlgorithmTable::FromJson(table->dump()));
  made.table.set_origin(absl::StrCat(DescribePlace(made.place), ", driver ", driver, ", ", date,
                                     ", commit ", commit));
  return made;
}

absl::StatusOr<DeviceTableChoice> ChooseDeviceTable(absl::Span<const DeviceTableFile> files,
                                                    const ProductPlace& place) {
  DeviceTableChoice choice;
  if (files.empty()) return choice;
  std::string other;
  for (const DeviceTableFile& file : files) {
    const absl::string_view text(static_cast<const char*>(file.data), file.size);
    absl::StatusOr<DeviceTable> table = ParseDeviceTable(text);
    if (!table.ok()) return base::Annotate(table.status(), file.name);
    if (table->place == place) {
      choice.line = absl::StrCat("the table of products of ", table->table.origin());
      choice.table = std::move(table->table);
      return choice;
    }
    if (table->place.device == place.device) other = DescribePlace(table->place);
  }
  choice.line = absl::StrCat("this program has no table of products of ", DescribePlace(place),
                             other.empty() ? "" : ", only of ", other, "; measures them");
  return choice;
}

}  // namespace megascale::gpu
